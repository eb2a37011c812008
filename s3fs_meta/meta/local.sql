-- The local tables: rows that concern only this host. An image does not contain these tables.
-- They are in the same database file as the replicated tables, so that one COMMIT covers all tables.

-- One row per block with a file in the cache directory.
CREATE TABLE IF NOT EXISTS cached_blocks (
    block       INTEGER PRIMARY KEY NOT NULL,
    state       INTEGER NOT NULL,                -- model.BlockState
    ino         INTEGER NOT NULL,                -- states 1 and 2: the inode that contains the block;
                                                 --   other states: the inode when the block was dirty
    block_index INTEGER NOT NULL,                -- position of the block in that inode
    synced_bytes INTEGER NOT NULL                -- states 1 and 2: length of the cache file at its last sync,
                                                 --   or length of the hole at the start of the file;
                                                 --   a power cut may lose the bytes after this length;
                                                 --   other states: 0, and blocks.hash verifies the file
);
CREATE INDEX IF NOT EXISTS cached_blocks_pending ON cached_blocks (state) WHERE state <> 4;

-- One row per block that replaced another block (its origin) and has not been synced since then.
-- After a power cut, the content of the block is restored from its origin.
-- The hash is NULL if the origin was not in the bucket when the row was inserted.
CREATE TABLE IF NOT EXISTS copies (
    block        INTEGER PRIMARY KEY NOT NULL,
    origin       INTEGER NOT NULL,               -- the replaced block; 0: a hole; or the block itself
    keep_bytes   INTEGER NOT NULL,               -- bytes that no truncation removed; zeros after plain_bytes
    plain_bytes  INTEGER NOT NULL,               -- plain_bytes to stored_bytes: copied from the origin's row in blocks
    hash         BLOB,
    pack         INTEGER,
    pack_offset  INTEGER,
    stored_bytes INTEGER
);

-- Recorded changes in order, until they are purged after their upload. A large group has several
-- rows, and a merged run has one row for many groups.
CREATE TABLE IF NOT EXISTS pending (
    seq       INTEGER PRIMARY KEY NOT NULL,
    changeset BLOB NOT NULL                      -- changes of the replicated tables (SQLite's session extension)
);

-- Packs that the next changelog lists: new, condemned, revived and removed packs, and packs that
-- received a moved or healed block.
-- A removed pack no longer has a row in packs.
CREATE TABLE IF NOT EXISTS pack_news (
    pack INTEGER PRIMARY KEY NOT NULL
);

-- The changelog that is being uploaded and is not yet confirmed; at most one row.
-- The bytes of the changelog are synced on this host before the upload, and never change.
CREATE TABLE IF NOT EXISTS outbox (
    txg  INTEGER PRIMARY KEY NOT NULL,
    data BLOB NOT NULL
);

-- One row per fact about this host's copy of the database. Names and values are text.
--   holder        random identity of this state directory; the lease names it as its holder
--   nonces        the last LEASE_NONCES_MAX random numbers that this directory drew for the lease,
--                 the newest last; each was synced on this host before it was written to the lease,
--                 so every lease of this directory contains one of them
--   replaced_lease  the lease that this host replaced when it took over (sync.lease.lease_proof)
--   own_txg       the last txg that this host may have written; other hosts wrote all later txgs
--   epoch         the epoch under which this host last wrote
--   head          JSON of the last image confirmed to be the head (codec.lease.Head), or absent
--   chain         JSON of the last changelog that the rows include: number, hash (chain.chain.Link)
--   unsettled     '1' if changelogs were applied and the totals have not been updated since then
--   floor         the retention floor for the next changelog (sync.chain.chain), or absent
--   shipped_seq   rows of pending up to this number are in a changelog and can be deleted
--   block_floor   the lowest number of a block that is new in the next changelog
--   attempt       JSON of an image whose publication began and was not confirmed, or absent
--   mend          reason why the next txg must be an image (the chain before it cannot be read);
--                 absent if no image is required, and after that image is in the bucket
--   image_wanted  '1' from a change of the page size until an image has the new size
--   changed       '1' if a replicated or location row changed after the head image was cut; valid
--                 only after a clean unmount: after a crash all rows are treated as changed
--   uuid          UUID of the filesystem
--   key_check     checksum that identifies the keys with which this copy was last opened
--   volatile      the event that can damage the database under its settings: 'crash'
--                 (journal_mode=off, memory), 'power' (synchronous=off) or 'nothing'. After that
--                 event the rows are not trusted. Also 'power' if the intent log of this epoch is in
--                 use, for program versions without an intent log
--   intent_log    the epoch and the random key of the intent log in use, and the number of its last
--                 entry that synced block files contain; valid only in this epoch. A recovery
--                 deletes the row, and so does the opening after a clean unmount
--   power_lost    '1' from the first mount after a power cut until the block files are checked
--   suspect       '1' after a power cut until every clean block is verified
--   unchecked     '1' after an unclean shutdown until the copy for an image was found intact
--   boot_id       /proc/sys/kernel/random/boot_id of the last mount, with the number of the attached
--                 disk and the inode number of the directory (machine.memory_of); if the value
--                 differs after an unclean shutdown, memory was lost as in a power cut
--   clean         '1' after a clean unmount
--   durable_commits  number of commits that needed a second commit to be durable (journal_mode=truncate)
CREATE TABLE IF NOT EXISTS local_state (
    name  TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;
