"""A mount that shows what another host writes.

follower          polls the chain and switches to the newest txg, all at once
follower_resync   another database, where changes do not lead there: restored beside, exchanged
promotion         the follower becomes the writer
resync            the image and changelogs that lead to the newest txg, downloaded anew

Start at ``follower``.
Below: chain, image, lease.
Above: session, fuse.kernel_cache.
"""
