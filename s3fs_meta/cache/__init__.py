"""Cached blocks on this host, from dirty to evicted.

block_cache:      the states of cached blocks: dirty, sealed, uploaded, clean.
block_files:      the files in the cache directory, one for each block.
block_sync:       makes the content of blocks durable, by their files or by the intent log.
intent_log:       content that fsync made durable before its block files are synced.
intent_replay:    writes the content of the intent log into block files after a crash.
open_blocks:      descriptors of block files that stay open.
fetcher:          downloads blocks.
arrived_content:  content of fetched blocks that readers will soon request.
read_coalescing:  chooses blocks that one request downloads together.
files_ahead:      makes empty files for the next blocks.
eviction:         makes room by removing clean blocks.
pinned_trees:     bounds pinned blocks, and pins new blocks of pinned trees.
index:            bytes per state and the eviction order, in memory.
disk_space:       reserves free space on the disk of the state directory.
upload_signal:    wakes the uploader when writers wait for room.
recovery:         removes leftovers of a crash, and restores copied blocks that were never synced.
slices:           splits long work into slices, so that other tasks can run between them.

Start at ``block_cache``.
Below: meta (rows of cached_blocks), codec.pack, objects.
Above: sync, fs.
"""
