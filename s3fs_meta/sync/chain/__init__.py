"""Reading the chain of changelogs in the bucket.

link            one changelog or image, and its position in the chain
head            the image that the lease names; a restore begins with it
level           several changelogs merged into one object, so that a restore reads fewer objects
abandoned txgs  unreadable last txgs of the chain, after which the chain continues

Start at ``chain``. ``replay`` applies links to a database, ``levels`` finds and makes levels,
``chain_watch`` detects that the bucket lost the last link.
Below: meta (rows), codec (bytes), objects (the store).
Above: changelog, image, lease, history.
"""
