-- The metadata database. This file is the authority on rows; docs/design/format.md explains it.
--
-- Three kinds of tables:
--   replicated  what the filesystem is; recorded by SQLite's session extension, so: a NOT NULL
--               primary key, no triggers, no foreign-key actions
--   location    where blocks and packs are; carried beside the recorded changes, never recorded
--   local       what only this host knows; dropped from every image (local.sql)
--
-- Numbers (ino, block, pack) come from `counters` and are never reused.
-- Times are nanoseconds since 1970 UTC; sizes are bytes.

-- ================================================================================ replicated ===

-- One row per inode. Times other than ctime are differences to it, so that the four equal times
-- of a new file cost eight bytes instead of thirty-two.
CREATE TABLE inodes (
    ino            INTEGER PRIMARY KEY NOT NULL,
    mode           INTEGER NOT NULL,             -- st_mode: type and permission bits
    nlink          INTEGER NOT NULL,             -- files: dentries that name it; directories: 2 + subdirectories
                                                 --   0: unlinked but still in use (orphan)
    uid            INTEGER NOT NULL,
    gid            INTEGER NOT NULL,
    size_bytes     INTEGER NOT NULL,             -- files: length; symlinks: length of target; directories: number of entries
    mapped_blocks  INTEGER NOT NULL,             -- = rows in block_map with this ino
    ctime_ns       INTEGER NOT NULL,
    mtime_delta_ns INTEGER NOT NULL,             -- mtime - ctime; limits.TIME_NS_MIN and _MAX bound the times
    atime_delta_ns INTEGER NOT NULL,             -- atime - ctime
    rdev           INTEGER NOT NULL,             -- device number of block and character devices, else 0
    parent         INTEGER NOT NULL,             -- directories: the one that names it (root: itself);
                                                 --   nlink = 1: the directory that names it;
                                                 --   nlink > 1: one of them (all are in hard_links)
    flags          INTEGER NOT NULL,             -- model.InodeFlag
    btime_delta_ns INTEGER NOT NULL DEFAULT 0    -- birth time - ctime; since version 2, before that 0 (db/schema.py)
);

-- Orphans are found without a scan; the index is empty on a healthy unmounted filesystem.
CREATE INDEX inodes_orphaned ON inodes (ino) WHERE nlink = 0;

-- One row per name. `cookie` is the readdir position: the upper 55 bits are a keyed hash of the
-- name, the lower 8 tell apart names of one hash (the lowest free number is taken). Always >= 256.
CREATE TABLE dentries (
    parent INTEGER NOT NULL,
    cookie INTEGER NOT NULL,
    name   BLOB    NOT NULL,                     -- 1..255 bytes, no '/' and no NUL, not '.' or '..'
    ino    INTEGER NOT NULL,
    PRIMARY KEY (parent, cookie)
) WITHOUT ROWID;

-- Empty but for an attack: tells in one step whether any hash is shared, so that adding a name
-- need not look for its like first (a quarter of the cost of a dentry).
CREATE INDEX dentries_collided ON dentries (parent) WHERE cookie & 255 <> 0;

-- Only for non-directories with nlink > 1: how many names each directory has for the inode.
-- The sum over an inode equals its nlink. (There is no index on dentries.ino.)
CREATE TABLE hard_links (
    ino    INTEGER NOT NULL,
    parent INTEGER NOT NULL,
    names  INTEGER NOT NULL,                     -- >= 1
    PRIMARY KEY (ino, parent)
) WITHOUT ROWID;

CREATE TABLE symlinks (
    ino    INTEGER PRIMARY KEY NOT NULL,
    target BLOB    NOT NULL                      -- 1..4095 bytes, no NUL
);

-- Extended attributes, POSIX ACLs among them (as the kernel encodes them, acl(5)).
CREATE TABLE xattrs (
    ino   INTEGER NOT NULL,
    name  BLOB    NOT NULL,                      -- with its namespace, e.g. user.comment
    value BLOB    NOT NULL,
    PRIMARY KEY (ino, name)
) WITHOUT ROWID;

-- Which block holds which part of a file. A hole has no row.
CREATE TABLE block_map (
    ino         INTEGER NOT NULL,
    block_index INTEGER NOT NULL,                -- offset // block size
    block       INTEGER NOT NULL,                -- -> blocks.block
    PRIMARY KEY (ino, block_index)
) WITHOUT ROWID;

-- One row (id = 1). The counts equal what a scan would give; they are written once per group.
CREATE TABLE counters (
    id             INTEGER PRIMARY KEY NOT NULL CHECK (id = 1),
    next_ino       INTEGER NOT NULL,             -- greater than every ino ever given
    next_block     INTEGER NOT NULL,
    txg            INTEGER NOT NULL,             -- number of the open txg when this row was written
    inodes         INTEGER NOT NULL,             -- = rows in inodes
    dentries       INTEGER NOT NULL,             -- = rows in dentries
    file_bytes     INTEGER NOT NULL,             -- = sum(size_bytes) of regular files
    capacity_bytes INTEGER NOT NULL              -- what statfs reports as size; 0 = unlimited
);

-- One row per fact that never changes after mkfs, but for the schema version, which an upgrade of
-- this database raises. Key is a word, value text or blob. Rows named damaged/<pack> and
-- damaged/<pack>/<offset> mark packs and records that the bucket does not give back (damaged.py).
CREATE TABLE properties (
    name  TEXT PRIMARY KEY NOT NULL,             -- uuid, schema_version, block_bytes, cookie_key (16 bytes); and the
                                                 --   manifests of abandoned images and the packs that stay
                                                 --   though they were unreadable: the value is empty
    value BLOB NOT NULL
) WITHOUT ROWID;

-- ================================================================================== location ===

-- One row per block: a run of at most block-size bytes of file content.
-- Until it is uploaded, hash and the three pack columns are NULL, all four.
CREATE TABLE blocks (
    block        INTEGER PRIMARY KEY NOT NULL,
    refs         INTEGER NOT NULL,               -- = rows in block_map with this block; 0 only while it is sealed
    plain_bytes  INTEGER NOT NULL,               -- length of the content; bytes past it within the block are a hole
    hash         BLOB,                           -- keyed BLAKE3 of the content, 32 bytes
    pack         INTEGER,                        -- -> packs.pack
    pack_offset  INTEGER,                        -- first byte within the object
    stored_bytes INTEGER                         -- length within the object (compressed, encrypted)
);

-- Not unique: two uploads at once may bring the same content, and a copy of an earlier moment may
-- hold a block that has gone since. Deduplication takes the block with the lowest number.
CREATE INDEX blocks_by_hash ON blocks (hash) WHERE hash IS NOT NULL;
CREATE INDEX blocks_by_pack ON blocks (pack) WHERE pack IS NOT NULL;

-- One row per pack object.
CREATE TABLE packs (
    pack         INTEGER PRIMARY KEY NOT NULL,
    object_key   TEXT    NOT NULL,               -- pack/<hh>/<epoch>-<random>
    state        INTEGER NOT NULL,               -- model.PackState
    object_bytes INTEGER NOT NULL,               -- size of the object
    live_bytes   INTEGER NOT NULL,               -- = sum(stored_bytes) of its rows in blocks
    died_txg     INTEGER                         -- the open txg when live_bytes became 0; NULL while alive
);

-- What reclaim looks for; nearly empty at all times.
CREATE INDEX packs_dead ON packs (died_txg) WHERE died_txg IS NOT NULL;

-- One row (id = 1): the counters of these two tables. Not recorded, like them; a host that follows
-- makes them anew before it writes.
CREATE TABLE totals (
    id             INTEGER PRIMARY KEY NOT NULL CHECK (id = 1),
    next_pack      INTEGER NOT NULL,             -- greater than every pack ever given
    block_bytes    INTEGER NOT NULL,             -- = sum(plain_bytes) over blocks (after deduplication)
    stored_bytes   INTEGER NOT NULL              -- = sum(object_bytes) over packs with state = 2
);
