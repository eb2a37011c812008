"""The chain of changelogs in the bucket, read.

link            one changelog or image, and its place in the chain
head            the image that the lease names: where a restore begins
level           several changelogs merged into one object, so that a restore reads fewer
abandoned txgs  the end of a chain that cannot be read: the chain continues behind it

Start at ``chain``. ``apply`` replays links into a database, ``levels`` finds and makes levels.
Below: meta (rows), codec (bytes), objects (the store).
Above: changelog, image, lease, history.
"""
