"""The history index: objects that list which inodes and names each txg changed.

index_runs:   computes the content of an index object.
index_writer: creates index objects in a background task of the writer.
index_search: finds the txgs that may have changed an inode or a name.
index_check:  compares index objects with the changelogs that they describe.

Start at ``index_search``.
Below: chain (reading changelogs), codec.history_index.
Above: versions, session, check.
"""
