"""The superblock: the parameters of a filesystem, and its wrapped master key.

copy        two objects in the bucket, and one file on this host: ``host_copy``
selection   the decision which copy is used
changes     writing it: a change, a missing copy, a damaged copy
proof       keys open other objects of the bucket, or nothing is written under them
unlocking   a passphrase, a recovery key or keys that are open already

Start at ``selection``: its table is the decision.
Below: codec.superblock (bytes), objects (the store).
Above: opening, history, superblock_watch.
"""
