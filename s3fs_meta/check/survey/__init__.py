"""The surveys of fsck: reading the bucket and the cache directory.

bucket:      lists the objects, and checks the images.
packs:       reads every stored pack, block by block (--deep), or only packs that may be damaged.
indexes:     searches the indexes of packs for blocks with a wrong location.
moved_packs: finds packs that are stored under the names of other packs.
cache:       lists the block files on this host, and verifies some.
chain:       reads the changelogs from the oldest retained image on.
history:     compares the objects of the history index with their changelogs (--deep).
kept:        finds the objects that kept points need.

Each survey writes its results to ``observations``. The rules evaluate them.
Start at ``bucket``.
Below: observations, codec, objects.
Above: run.
"""
