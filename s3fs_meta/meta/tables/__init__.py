"""One module per table of schema.sql and local.sql.

inodes, dentries, hard_links, symlinks, xattrs:   the directory tree and attributes.
block_map, blocks, packs:                         the blocks of files, and the packs of blocks.
cached_blocks, block_origins:                     the cache of this host.
pending:                                          changes that are not in the bucket yet.
properties:                                       choices of mkfs, abandoned images, kept packs.
damage_marks:                                     rows of ``properties`` that mark damaged packs.
local_state:                                      facts about this host's copy of the database.

Start at ``inodes``. ``row_types`` checks the types of values.
Below: db.
Above: trees, offline, and every caller of meta.
"""
