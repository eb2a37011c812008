-- The tables that only this host has. They live in the same database file as the others, so that
-- one COMMIT covers both, and are dropped from the copy that becomes an image.

-- One row per block with a file in the cache directory.
CREATE TABLE IF NOT EXISTS cached_blocks (
    block       INTEGER PRIMARY KEY NOT NULL,
    state       INTEGER NOT NULL,                -- model.BlockState
    ino         INTEGER NOT NULL,                -- states 1 and 2: the file it belongs to
    block_index INTEGER NOT NULL,                --   and the place in it; 3 and 4: as it was then
    synced_bytes INTEGER NOT NULL                -- states 1 and 2: the file was so long when it was last synced, or
                                                 --   begins with so long a hole; what lies behind may be missing
                                                 --   after a cut of power. Others: 0, blocks.hash serves
);
CREATE INDEX IF NOT EXISTS cached_blocks_pending ON cached_blocks (state) WHERE state <> 4;

-- One row per block that replaced another one (its origin) and was not synced since: after a power
-- cut it gets its content from the origin. An origin without hash was not yet in the bucket.
CREATE TABLE IF NOT EXISTS copies (
    block        INTEGER PRIMARY KEY NOT NULL,
    origin       INTEGER NOT NULL,               -- the block that was there before; 0: a hole
    keep_bytes   INTEGER NOT NULL,               -- so much of it was not cut off the file
    plain_bytes  INTEGER NOT NULL,               -- this and what follows: as blocks had it
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

-- Packs of which the next changelog tells: new, condemned, or gone when packs has no row of it.
CREATE TABLE IF NOT EXISTS pack_news (
    pack INTEGER PRIMARY KEY NOT NULL
);

-- The changelog that was or will be sent and is not confirmed; at most one row. Its bytes are synced
-- here before they are sent, and never become others.
CREATE TABLE IF NOT EXISTS outbox (
    txg  INTEGER PRIMARY KEY NOT NULL,
    data BLOB NOT NULL
);

-- One row per fact about this host's copy. Key is a word, value text.
--   holder        random identity of this state directory, as it stands in the lease
--   nonces        that it drew for the lease, the latest last, up to LEASE_NONCES_MAX; each was synced
--                 here before the lease got it, so a lease of its own has one of them
--   own_txg       the last changelog that it wrote itself and confirmed; later ones are of others
--   epoch         the epoch under which it last wrote
--   head          JSON of the last image confirmed to be the head (codec.lease.Head), or absent
--   chain         JSON of the last changelog that the rows hold: number and hash (sync.chain.Link)
--   unsettled     '1' while changelogs were applied and totals do not fit to them yet
--   floor         the retention floor that the next changelog is to have (sync.reclaim), or absent
--   shipped_seq   rows of pending up to this number are in a changelog, and go
--   block_floor   blocks from this number on are new to the next changelog
--   attempt       JSON of an image whose publication was begun and not confirmed, or absent
--   mend          why the next txg has to be an image: the chain before it cannot be read, or
--                 absent; until that txg is in the bucket
--   image_wanted  '1' from a change of the page size until an image has it
--   changed       '1' when something replicated or located changed after the head's cut; true
--                 only after a clean unmount, after a crash everything counts as changed
--   uuid          of the filesystem
--   volatile      what the settings do not survive: 'crash' (journal_mode=off, memory), 'power'
--                 (synchronous=off), 'nothing'; after one the rows are not trusted
--   power_lost    '1' from the first mount after power was lost until files were looked through
--   suspect       '1' after power was lost, until every clean block was verified
--   boot_id       /proc/sys/kernel/random/boot_id of the last mount: a change means power was lost
--   clean         '1' after a clean unmount
--   durable_commits  number of commits that needed a second one to be durable (journal_mode=truncate)
CREATE TABLE IF NOT EXISTS local_state (
    name  TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) WITHOUT ROWID;
