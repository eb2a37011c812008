"""The superblock: the parameters of a filesystem, and its wrapped master key.

copy:       one of the two superblock objects in the bucket, or this host's file (``host_copy``).
selection:  the choice of the copy to use.
changes:    writing the superblock: a change, a missing copy, a damaged copy.
proof:      a check before any write that the keys open other objects of the bucket.
unlocking:  secrets: a passphrase, a recovery key, or keys that are already known.

Start at ``selection``; the table in its docstring shows the decisions.
Below: codec.superblock (bytes), objects (the store).
Above: opening, history, superblock_watch.
"""
