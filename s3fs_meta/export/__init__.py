"""Files copied out of a filesystem that is not mounted.

copier            writes files of one metadata database into a directory
from_snapshot     which files: a tree as it was at one point in time
from_quarantine   which files, and which of their bytes: quarantined local state
quarantine_list   quarantined state directories, and what in them the bucket may lack

Start at ``copier``.
Below: fs (names of extended attributes), sync (content of blocks), meta (rows).
Above: cli.
"""
