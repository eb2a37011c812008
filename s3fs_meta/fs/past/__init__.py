"""Points in time as directories below the root of a mount, created on first use.

top:       the directory ``.snapshots``; no listing of the root shows it.
point:     one point in time: a directory in ``.snapshots`` that contains the tree of that time.
slot:      the number of a point in one mount; part of the inode numbers that programs see.

The directory ``.snapshots`` is read-only. Each point has a temporary database, which is restored
when a request needs it and removed when it is idle; the numbers of its inodes stay valid.

Start at ``past_tree``. ``open_points`` restores the database of a point and closes idle ones.
``past_clone`` copies a tree of a point into the present.
Below: sync (history), meta (rows). Above: fuse, which passes requests for these inodes.
"""
