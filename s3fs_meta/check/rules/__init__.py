"""The numbered invariants, grouped into modules by subject.

names, inodes, attributes, files:  the directory tree and the block maps of files.
link_counts:                       link counts, directory sizes and parents, counted from names.
blocks, packs:                     blocks, and values derived from them.
database:                          SQLite's own checks, schema, values of columns, counters.
bucket, cache:                     rows compared with objects and files, after a survey.

Each module ends with a tuple of Invariant. Start at ``files``, the shortest.
Below: context, observations, sums, lost_found.
Above: invariants, the ordered table.
"""
