"""The connection to the metadata database.

database:    the one writing connection: commit groups (transactions), counters, statements.
statements:  running SQL.
inode_table: the table ``inodes``: a write-back cache of its rows, and all its statements.
schema:      the tables, from schema.sql and local.sql, and their upgrade from earlier versions.
wal:         the write-ahead log: length, sync, checkpoint.
snapshot:    a consistent copy while the writer continues.
pinned_reader: the read transaction of a follower, which sees one txg.

Start at ``database``. Only ``connections`` opens connections; it also translates SQLite's
exceptions. ``pragmas`` are the mount options for SQLite; ``db_swap`` replaces database files.
Below: model, limits, errors.
Above: tables, trees, offline.
"""
