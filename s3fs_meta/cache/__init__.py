"""Cached blocks on this host, from dirty to evicted.

block_cache:   the states of cached blocks: dirty, sealed, uploaded, clean.
files/:        the files in the cache directory, one for each block.
crash_safety/: makes content durable, and recovers it after a crash.
fetching/:     downloads blocks.
eviction:      makes room by removing clean blocks.
pinned_trees:  bounds pinned blocks, and pins new blocks of pinned trees.
index:         bytes per state and the eviction order, in memory.
disk_space:    reserves free space on the disk of the state directory.
waiting_writers: lets writers wait for room while the upload makes progress; wakes the uploader.
slices:        splits long work into slices, so that other tasks can run between them.

Start at ``block_cache``.
Below: meta (rows of cached_blocks), codec.pack, objects.
Above: sync, fs.
"""
