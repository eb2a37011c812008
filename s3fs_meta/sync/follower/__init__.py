"""A read-only mount that follows the changes of another host.

follower          polls the chain and switches to each new txg atomically
follower_resync   if changelogs do not lead to the newest txg: a second database, restored anew
promotion         the follower becomes the writer; the same fence as any opening for writing

Each txg becomes visible at once: no request is answered partly from the one before.

Start at ``follower``.
Below: chain, image, lease.
Above: session, fuse.kernel_cache.
"""
