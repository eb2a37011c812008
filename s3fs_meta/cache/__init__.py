"""Cached blocks on this host, from dirty to evicted.

block_cache       the states of cached blocks: dirty, sealed, uploaded, clean
block_files       one file per block
fetcher           downloads blocks; ``read_coalescing``: several in one request
eviction          makes room by removing clean blocks
index             bytes per state and the eviction order, in memory
disk_space        reserves free space on the disk of the state directory
upload_signal     wakes the uploader when writers wait for room
recovery          cleans up after a crash, restores blocks that were never synced

Start at ``block_cache``.
Below: meta (rows of cached_blocks), codec.pack, objects.
Above: sync, fs.
"""
