"""A read-only mount that follows the changes of another host.

follower:         polls the chain and switches to each new txg atomically.
follower_resync:  restores a second database if changelogs alone do not reach the newest txg.
quarantine:       quarantines cached blocks that may be last copies, before that restore.
promotion:        makes the follower the writer; appends a fence record, as every new writer does.

Each txg becomes visible atomically: no request reads two txgs.

Start at ``follower``.
Below: chain, image, lease.
Above: session, fuse.kernel_cache.
"""
