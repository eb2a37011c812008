-- The metadata database. This file is the authoritative definition of its rows;
-- docs/design/format.md explains them.
--
-- Three kinds of tables:
--   replicated  names, attributes and block maps. Their changes are recorded (group_changes.py);
--               this requires a NOT NULL primary key, no triggers and no foreign-key actions
--   location    where blocks and packs are stored. Changes are not recorded; changelogs list the rows
--   local       facts about this host; dropped from every image (local.sql)
--
-- Numbers (ino, block, pack) come from `counters` and are never reused.
-- Times are nanoseconds since 1970 UTC; sizes are bytes.

-- ================================================================================ replicated ===

-- One row per inode. mtime, atime and the birth time are stored as differences from ctime.
-- So the four equal times of a new file take eight bytes instead of thirty-two.
CREATE TABLE inodes (
    ino            INTEGER PRIMARY KEY NOT NULL,
    mode           INTEGER NOT NULL,             -- st_mode: type and permission bits
    nlink          INTEGER NOT NULL,             -- files: number of dentries; directories: 2 + subdirectories
                                                 --   0: unlinked but still in use (orphan)
    uid            INTEGER NOT NULL,
    gid            INTEGER NOT NULL,
    size_bytes     INTEGER NOT NULL,             -- files: length; symlinks: length of target; directories: number of entries
    mapped_blocks  INTEGER NOT NULL,             -- = rows in block_map with this ino
    ctime_ns       INTEGER NOT NULL,
    mtime_delta_ns INTEGER NOT NULL,             -- mtime - ctime; limits.TIME_NS_MIN and _MAX bound the times
    atime_delta_ns INTEGER NOT NULL,             -- atime - ctime
    rdev           INTEGER NOT NULL,             -- device number of block and character devices, else 0
    parent         INTEGER NOT NULL,             -- directories: the parent directory (root: itself);
                                                 --   files, nlink = 1: the directory with the name;
                                                 --   files, nlink > 1: one such directory (hard_links has all)
    flags          INTEGER NOT NULL,             -- model.InodeFlag
    btime_delta_ns INTEGER NOT NULL DEFAULT 0    -- birth time - ctime; added by schema version 2 (db/schema.py)
);

-- Finds orphans without a scan. The index is empty after a clean unmount.
CREATE INDEX inodes_orphaned ON inodes (ino) WHERE nlink = 0;

-- One row per name. `cookie` is the readdir position: the upper 55 bits are a keyed hash of the
-- name, the lower 8 distinguish names with equal hashes (the lowest free number). Always >= 256.
CREATE TABLE dentries (
    parent INTEGER NOT NULL,
    cookie INTEGER NOT NULL,
    name   BLOB    NOT NULL,                     -- 1..255 bytes, no '/' and no NUL, not '.' or '..'
    ino    INTEGER NOT NULL,
    PRIMARY KEY (parent, cookie)
) WITHOUT ROWID;

-- Names that have the same hash as another name in their directory.
-- The index is empty unless names are chosen to collide.
-- While it is empty, a name is added without a search for equal hashes, which saves time.
CREATE INDEX dentries_collided ON dentries (parent) WHERE cookie & 255 <> 0;

-- Only for non-directories with nlink > 1: how many names of the inode each directory contains.
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

-- Extended attributes, including POSIX ACLs (as the kernel encodes them, acl(5)).
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

-- One row (id = 1). The counts equal the results of a scan; they are written once per group.
CREATE TABLE counters (
    id             INTEGER PRIMARY KEY NOT NULL CHECK (id = 1),
    next_ino       INTEGER NOT NULL,             -- greater than every inode number ever assigned
    next_block     INTEGER NOT NULL,
    txg            INTEGER NOT NULL,             -- number of the open txg when this row was written
    inodes         INTEGER NOT NULL,             -- = rows in inodes
    dentries       INTEGER NOT NULL,             -- = rows in dentries
    file_bytes     INTEGER NOT NULL,             -- = sum(size_bytes) of regular files, modulo 2^64 and signed
    capacity_bytes INTEGER NOT NULL              -- the size that statfs reports; 0 = unlimited
);

-- One row per fact. Facts chosen by mkfs never change, except that an upgrade raises the schema version.
-- Rows with an empty value list abandoned images and unreadable packs to keep (tables/properties.py).
-- They also list missing or damaged packs and records as damaged/<pack> or damaged/<pack>/<offset>
-- (tables/damage_marks.py).
CREATE TABLE properties (
    name  TEXT PRIMARY KEY NOT NULL,             -- uuid, schema_version, block_bytes, cookie_key (16 bytes), or an
                                                 --   object key or damage mark with an empty value
    value BLOB NOT NULL
) WITHOUT ROWID;

-- ================================================================================== location ===

-- One row per block: a run of at most block-size bytes of file content.
-- The last four columns, from hash to stored_bytes, are NULL until the block is uploaded.
CREATE TABLE blocks (
    block        INTEGER PRIMARY KEY NOT NULL,
    refs         INTEGER NOT NULL,               -- = rows in block_map with this block; 0 only while it is sealed
    plain_bytes  INTEGER NOT NULL,               -- length of the content; the rest of the block reads as zeros
    hash         BLOB,                           -- keyed BLAKE3 of the content, 32 bytes
    pack         INTEGER,                        -- -> packs.pack
    pack_offset  INTEGER,                        -- first byte within the object
    stored_bytes INTEGER                         -- length within the object (compressed, encrypted)
);

-- Not unique: two concurrent uploads may have equal content.
-- Also, an older snapshot may contain a block that has been deleted since then.
-- Deduplication uses the block with the lowest number.
CREATE INDEX blocks_by_hash ON blocks (hash) WHERE hash IS NOT NULL;
CREATE INDEX blocks_by_pack ON blocks (pack) WHERE pack IS NOT NULL;

-- One row per pack object.
CREATE TABLE packs (
    pack         INTEGER PRIMARY KEY NOT NULL,
    object_key   TEXT    NOT NULL,               -- pack/<hh>/<epoch>-<random>
    state        INTEGER NOT NULL,               -- model.PackState
    object_bytes INTEGER NOT NULL,               -- size of the object
    live_bytes   INTEGER NOT NULL,               -- = sum(stored_bytes) of its rows in blocks
    died_txg     INTEGER                         -- the open txg when live_bytes became 0; NULL for a pack in use
);

-- Finds packs without live blocks, for garbage collection; usually nearly empty.
CREATE INDEX packs_dead ON packs (died_txg) WHERE died_txg IS NOT NULL;

-- One row (id = 1): the counters of blocks and packs. Changes of this row are not recorded.
-- A follower recomputes the row before it becomes the writer.
CREATE TABLE totals (
    id             INTEGER PRIMARY KEY NOT NULL CHECK (id = 1),
    next_pack      INTEGER NOT NULL,             -- greater than every pack number ever assigned
    block_bytes    INTEGER NOT NULL,             -- = sum(plain_bytes) over blocks (after deduplication)
    stored_bytes   INTEGER NOT NULL              -- = sum(object_bytes) over packs with state = 2
);
