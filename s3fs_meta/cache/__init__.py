"""Cached blocks on this host, from dirty to evicted.

block_cache       the states of cached blocks: dirty, sealed, uploaded, clean
block_files       one file per block
fetcher           blocks from the store; ``read_coalescing``: several in one request
index             bytes per state and the eviction order, in memory
disk_space        free space below the state directory
recovery          after a crash; ``power_loss``: blocks that were never synced

Start at ``block_cache``.
Below: meta (rows of cached_blocks), codec.pack, objects.
Above: sync, fs.
"""
