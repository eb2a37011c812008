-- The local tables: rows that concern only this host. They are in the same database file as the
-- replicated tables, so that one COMMIT covers all. An image does not contain them.

-- One row per block with a file in the cache directory.
CREATE TABLE IF NOT EXISTS cached_blocks (
    block       INTEGER PRIMARY KEY NOT NULL,
    state       INTEGER NOT NULL,                -- model.BlockState
    ino         INTEGER NOT NULL,                -- states 1 and 2: the inode whose content the block is;
                                                 --   other states: the inode when the block was dirty
    block_index INTEGER NOT NULL,                -- position of the block in that inode
    synced_bytes INTEGER NOT NULL                -- states 1 and 2: length of the cache file at its last sync, or of
                                                 --   the hole with which it begins; bytes beyond it may be lost by
                                                 --   a power cut. Other states: 0, and blocks.hash verifies the file
);
CREATE INDEX IF NOT EXISTS cached_blocks_pending ON cached_blocks (state) WHERE state <> 4;

-- One row per block that replaced another block (its origin) and was not synced since. After a power
-- cut the block gets its content from the origin. An origin without hash was not yet in the bucket.
CREATE TABLE IF NOT EXISTS copies (
    block        INTEGER PRIMARY KEY NOT NULL,
    origin       INTEGER NOT NULL,               -- the replaced block; 0: a hole; or the block itself
    keep_bytes   INTEGER NOT NULL,               -- bytes that no truncation removed; zeros after plain_bytes
    plain_bytes  INTEGER NOT NULL,               -- plain_bytes to stored_bytes: the origin's row in blocks
    hash         BLOB,
    pack         INTEGER,
    pack_offset  INTEGER,
    stored_bytes INTEGER
);

-- Recorded changes that no changelog holds yet, one row per group, in order.
CREATE TABLE IF NOT EXISTS pending (
    seq       INTEGER PRIMARY KEY NOT NULL,
    changeset BLOB NOT NULL                      -- of the replicated tables; SQLite's session extension
);

-- Packs that the next changelog lists: new and condemned packs, and removed packs, which have no row
-- in packs any more.
CREATE TABLE IF NOT EXISTS pack_news (
    pack INTEGER PRIMARY KEY NOT NULL
);

-- The changelog that is being uploaded and is not yet confirmed; at most one row. Its bytes are synced
-- on this host before the upload, and never change.
CREATE TABLE IF NOT EXISTS outbox (
    txg  INTEGER PRIMARY KEY NOT NULL,
    data BLOB NOT NULL
);

-- One row per fact about this host's copy. The key is a word, the value is text.
--   holder        random identity of this state directory; the lease names it as its holder
--   nonces        random numbers that this directory drew for the lease, the latest last, up to
--                 LEASE_NONCES_MAX; each was synced on this host before the lease got it, so a lease
--                 of this directory has one of them
--   replaced_lease  the lease that this host replaced when it took over (sync.lease.lease_proof)
--   own_txg       the last changelog that this host wrote and confirmed; other hosts wrote later ones
--   epoch         the epoch under which this host last wrote
--   head          JSON of the last image confirmed to be the head (codec.lease.Head), or absent
--   chain         JSON of the last changelog that the rows hold: number and hash (sync.chain.Link)
--   unsettled     '1' while changelogs were applied and the totals were not updated yet
--   floor         the retention floor for the next changelog (sync.history.reclaim), or absent
--   shipped_seq   rows of pending up to this number are in a changelog and can be deleted
--   block_floor   blocks from this number on are new to the next changelog
--   attempt       JSON of an image whose publication began and was not confirmed, or absent
--   mend          why the next txg has to be an image (the chain before it cannot be read);
--                 absent if any txg will do, and once that image is in the bucket
--   image_wanted  '1' from a change of the page size until an image has the new size
--   changed       '1' if a replicated or location row changed after the head image was cut; valid
--                 only after a clean unmount: after a crash every row counts as changed
--   uuid          of the filesystem
--   key_check     checksum that identifies the keys with which this copy was last opened
--   volatile      the event that the settings do not survive: 'crash' (journal_mode=off, memory),
--                 'power' (synchronous=off) or 'nothing'; after that event the rows are not trusted.
--                 Also 'power' if the intent log of this epoch is in use, for programs without it
--   intent_log    the epoch and the random key of the intent log in use, and the number of its last
--                 entry that synced block files contain; not valid in another epoch, and absent
--                 after a recovery or a clean unmount, from the next opening on
--   power_lost    '1' from the first mount after a power cut until the block files were checked
--   suspect       '1' after a power cut until every clean block was verified
--   boot_id       /proc/sys/kernel/random/boot_id of the last mount, with the number of the attached
--                 disk and the inode number of the directory (machine.memory_of); if it has changed
--                 after an unclean shutdown, the memory was lost, as by a power cut
--   clean         '1' after a clean unmount
--   durable_commits  number of commits that needed a second commit to be durable (journal_mode=truncate)
CREATE TABLE IF NOT EXISTS local_state (
    name  TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;
