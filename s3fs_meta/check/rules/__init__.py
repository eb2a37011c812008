"""The numbered invariants, each in the module of what it is about.

names, inodes, attributes, trees, files   the tree, and the block map of each file
blocks, packs, totals                     content and what is derived from it
database, types                           SQLite's own checks, schema, values of columns
bucket, cache                             rows against objects and files: after a survey

Each module ends with a tuple of Invariant. Start at ``totals``, the shortest.
Below: context, observations, scratch_tables, repair.
Above: invariants, the ordered table.
"""
