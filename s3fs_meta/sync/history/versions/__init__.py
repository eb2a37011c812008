"""The changes of files and of txgs, read from changelogs.

path_versions:    the versions of a path, and the changes of each of its inodes.
path_log:         the txgs that changed a file, or anything below a directory.
txg_log:          the log of txgs, read backwards from any txg.
changed_between:  the inodes that changed between two txgs.
changelog_reader: reads individual changelogs, in any order.
kept_scan:        caches results that several searches share.

Start at ``path_versions``.
Below: index (the txgs to read), chain, snapshot_mount.
Above: browse, cli.log, cli.versions, cli.diff.
"""
