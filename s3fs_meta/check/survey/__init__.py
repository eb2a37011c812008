"""The surveys of fsck: reading the bucket and the cache directory.

bucket   the listing of objects, and the images
packs    every stored pack, block by block (--deep), or only packs of a wrong size
cache    block files on this host
chain    changelogs from the base image to the end

Each writes its results into ``observations``; no survey judges or repairs.
Start at ``bucket``.
Below: observations, codec, objects.
Above: run.
"""
