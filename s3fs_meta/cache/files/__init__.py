"""The files of cached blocks on the local disk.

block_files:      one file for each block, with its plain content.
open_blocks:      descriptors of block files that stay open.
files_ahead:      creates empty files for the next blocks.
file_syncs:       syncs many files at the same time.
early_write_back: starts the write-back of large writes before any sync.
lost_pages:       the pages of a file that the kernel could not write to the disk.

Start at ``block_files``.
Below: hashed_dir.
Above: block_cache, crash_safety, fetching.
"""
