"""Copying files out of a filesystem that is not mounted.

copier            writes files of one metadata database into a directory
from_snapshot     chooses files from a tree at one point in time
from_quarantine   chooses files and reliable bytes from quarantined local state
quarantine_list   quarantined state directories, and their changes that the bucket may lack

Start at ``copier``.
Below: fs (names of extended attributes), sync (content of blocks), meta (rows).
Above: cli.
"""
