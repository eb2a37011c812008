"""Making cached content durable, and recovering it after a crash.

block_sync:    makes the content of blocks durable, by their files or by the intent log.
unlogged:      the written parts of blocks that are not durable yet.
intent_log:    content that fsync made durable before its block files are synced.
intent_replay: writes the content of the intent log into block files after a crash.
recovery:      removes leftovers of a crash, and restores copied blocks that were never synced.
suspects:      blocks that a power cut may have torn, until they are verified.
quick_thread:  short blocking calls in a thread, with a fast wake-up.

Start at ``block_sync``, then ``recovery``.
Below: files, meta (rows of cached_blocks and copies).
Above: block_cache, sync.durability, sync.opening.
"""
