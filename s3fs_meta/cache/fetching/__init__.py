"""Downloading blocks from packs in the bucket.

fetcher:          downloads blocks, with one request for many readers.
read_coalescing:  chooses blocks that one request downloads together.
arrived_content:  content of fetched blocks that readers will soon request.
uncached_content: content of fetched blocks, if the disk is full.

Each fetched block is verified before it is used.

Start at ``fetcher``.
Below: files (the files of blocks), codec.pack, objects.
Above: block_cache, fs.content, sync.
"""
