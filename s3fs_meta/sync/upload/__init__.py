"""Upload: storing dirty blocks in packs, until the store has confirmed the packs.

block:      the unit of caching: dirty, sealed, uploaded, clean.
pack:       one immutable object with many sealed blocks and their index.
cut:        the blocks of one consistent snapshot, and the location of each in a pack.
compaction: moves live blocks of mostly dead packs to new packs.
healing:    marks packs with proven damage, and uploads their cached blocks again.

Start at ``uploader.Uploader.run``. ``sealing`` selects the blocks to seal, ``packer`` creates packs
from these blocks, ``pack_index`` reads the index of a pack in the bucket, ``pack_salvage`` copies
blocks of packs without a readable index, ``bounds`` has the sizes of batches, ``throughput``
measures the speed of uploads.
Below: cache (block files), codec.pack (bytes), objects (the store).
Above: changelog, which ships the rows that refer to packs.
"""
