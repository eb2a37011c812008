"""Copying files out of a filesystem that is not mounted.

copier:           copies files of one metadata database into a directory.
from_snapshot:    copies trees of a filesystem at one point in time.
from_quarantine:  copies files of a quarantined state, and finds bytes that are not reliable.
quarantine_list:  finds quarantined states, and the changes in them that may not be in the bucket.

Start at ``copier``.
Below: fs (names of extended attributes), sync (content of blocks), meta (rows).
Above: cli.
"""
