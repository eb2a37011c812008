"""The metadata database. Synchronous; the only package that uses SQLite.

db/               the connection: groups, statements, write-ahead log, schema, snapshots
tables/           one module per table, with every statement about it
trees/            statements about complete trees of directories
offline/          databases that no mount uses: images, restored and rolled back ones
changesets        recorded changes as values: merge, apply, list the rows they change
replica           rows brought to the end of another txg; ``placements``: locations of uploaded blocks

Start at ``schema.sql``, then ``db.database`` and ``tables.inodes``.
Below: codec (bytes of changelogs), model.
Above: cache, sync, fs, check.
"""
