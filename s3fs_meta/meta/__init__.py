"""The metadata database in SQLite. Calls block. Only ``testing`` also uses SQLite directly.

db/:              the connection: commit groups, statements, write-ahead log, schema, snapshots.
tables/:          one module per table, with its SQL statements.
trees/:           statements on complete directory trees.
offline/:         databases outside a mount: images, restored or rolled-back databases.
group_changes:    records the changes of each commit group.
changesets:       merges and applies recorded changes, and lists the changed rows.
replica:          applies a writer's changelogs to the database of another host.
placements:       records where uploaded blocks are stored.
next_numbers:     refuses next numbers that are in use, before a writer takes numbers.
lost_ranges:      the extended attribute that lists the lost ranges of a file.

Start at ``schema.sql``, then ``db.database`` and ``tables.inodes``.
Below: codec (bytes of changelogs), model.
Above: cache, sync, fs, check.
"""
