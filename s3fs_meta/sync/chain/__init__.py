"""Reading the chain of changelogs in the bucket.

link:           a position in the chain: a txg, and the hash of its changelog.
head:           the image to which the lease refers; a restore starts from this image.
level:          several changelogs merged into one object, so that a restore reads fewer objects.
abandoned txgs: unreadable txgs at the end of the chain, whose numbers fsck skips.

Start at ``chain``. ``replay`` applies changelogs to a database, ``levels`` finds and merges levels,
``chain_watch`` detects that the bucket lost the last changelog.
Below: meta (rows), codec (bytes), objects (the store).
Above: changelog, image, lease, history.
"""
