"""The surveys of fsck: reading the bucket and the cache directory.

bucket       lists the objects, and checks the images
packs        reads every stored pack, block by block (--deep), or only packs of a wrong size
indexes      searches the indexes of packs for blocks with a wrong location
moved_packs  finds packs that are stored under the names of other packs
cache        lists block files on this host
chain        reads changelogs from the base image to the last one

Each survey writes its results into ``observations``; no survey judges or repairs.
Start at ``bucket``.
Below: observations, codec, objects.
Above: run.
"""
