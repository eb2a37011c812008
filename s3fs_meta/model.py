"""The nouns that travel between layers: numbers with types of their own, and frozen values.

Owns: NewTypes and tuples. Does not know: SQLite, FUSE, stores.
Tuples (NamedTuple) rather than dataclasses where one is made for every request: making a
NamedTuple from a database row costs about a third of making a frozen dataclass.
"""

import enum
from typing import Final, NamedTuple, NewType

Ino = NewType("Ino", int)
BlockId = NewType("BlockId", int)  # number of a block, never reused
BlockIndex = NewType("BlockIndex", int)  # position of a block in its file, counted from 0
PackId = NewType("PackId", int)
Txg = NewType("Txg", int)  # transaction group; until changelogs exist, one image is one txg
Epoch = NewType("Epoch", int)  # raised by every read-write mount
Cookie = NewType("Cookie", int)  # position of a dentry in its directory, for readdir
ObjectKey = NewType("ObjectKey", str)  # full key within a bucket prefix, e.g. pack/3f/7-9a...

ROOT_INO: Final = Ino(1)


class Attributes(NamedTuple):
    """One inode as stat(2) reports it; times are nanoseconds since 1970, UTC."""

    ino: Ino
    mode: int
    nlink: int
    uid: int
    gid: int
    size_bytes: int
    mapped_blocks: int  # number of rows in the block map: blocks that are not holes
    ctime_ns: int
    mtime_ns: int
    atime_ns: int
    rdev: int
    parent: Ino  # exact for directories; for others the last directory that named it
    flags: int  # InodeFlag
    btime_ns: int  # creation time; never changes


class InodeFlag:
    """Bits of ``inodes.flags``: plain numbers, because asking an enumeration takes a microsecond."""

    HAS_XATTRS: Final = 1  # the inode has rows in xattrs
    REMOVED: Final = 2  # a directory without a name, emptied in the background; nlink is 0
    LOCKED: Final = 4  # the inode cannot change any more, nor can any name in it
    HOLDS_LOCKED: Final = 8  # a directory that has, or had, something protected below it
    IMMUTABLE: Final = 16  # the inode and its names cannot change until chattr -i
    APPEND_ONLY: Final = 32  # the file can only grow, until chattr -a
    PROTECTED: Final = LOCKED | IMMUTABLE | APPEND_ONLY


class PointInTime(NamedTuple):
    """A point in time as the user gives it: by the clock, or by the number of its txg."""

    text: str  # as the user wrote it
    time_ns: int | None = None  # the state at this time; None: another field is used
    txg: Txg | None = None  # if neither this nor the time is set: the newest txg
    is_ago: bool = False  # the time was counted back from now, by this host's clock


NEWEST: Final = PointInTime("newest")


class Mark(NamedTuple):
    """A position in the chain of changelogs that a user has noted."""

    txg: Txg
    hash: str  # first digits of the changelog's hash


class Caller(NamedTuple):
    """The credentials that FUSE passes with a request."""

    uid: int
    gid: int
    umask: int
    pid: int


class BlockState(enum.IntEnum):
    """The state of a cached block (DESIGN: life of a block)."""

    DIRTY = 1  # dirty: not yet in the bucket, writable in place
    SEALED = 2  # frozen, not yet in the bucket, waits for its pack
    UPLOADED = 3  # the store confirmed it; the local row is not yet synced
    CLEAN = 4  # evictable
    DOOMED = 5  # no row references it; its file is deleted after the next background sync


class PackState(enum.IntEnum):
    """The state of a pack object."""

    UPLOADING = 1  # recorded before the PUT: the object may or may not exist
    STORED = 2  # confirmed by the store
    CONDEMNED = 3  # deletion decided: no new references; deleted when no retained image names it


class BlockRow(NamedTuple):
    """One row of ``blocks``; pack fields are None until the block is uploaded."""

    block: BlockId
    refs: int
    plain_bytes: int
    hash: bytes | None
    pack: PackId | None
    pack_offset: int | None
    stored_bytes: int | None


class CachedRow(NamedTuple):
    """One row of ``cached_blocks``: a block with a local copy."""

    block: BlockId
    state: BlockState
    ino: Ino
    block_index: BlockIndex


class AccessTime(enum.Enum):
    """When reading a file writes its access time; the words of mount(8)."""

    NEVER = "noatime"
    RELATIVE = "relatime"
    ALWAYS = "strictatime"
