"""A read-only mount that follows the changes of another host.

follower          polls the chain and switches to each new txg atomically
follower_resync   if changelogs do not lead to the newest txg: a second database, restored anew
promotion         the follower becomes the writer
audience          a cache of answers, the kernel's, that drops those that a txg changed

Start at ``follower``.
Below: chain, image, lease.
Above: session, fuse.kernel_cache.
"""
