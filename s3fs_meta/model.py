"""The values that all layers share: numbers with types of their own, and immutable tuples.

Owns: NewTypes and tuples. Does not know: SQLite, FUSE, stores.
Values that every request makes are NamedTuples: making one from a database row takes about a third
of the time of a frozen dataclass.
"""

import enum
import ipaddress
from typing import Final, NamedTuple, NewType

from typing_extensions import override

Ino = NewType("Ino", int)
BlockId = NewType("BlockId", int)  # number of a block, never reused
BlockIndex = NewType("BlockIndex", int)  # position of a block in its file, counted from 0
PackId = NewType("PackId", int)
Txg = NewType("Txg", int)  # transaction group
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
    """Bits of ``inodes.flags``: integers, because testing an enumeration takes a microsecond."""

    HAS_XATTRS: Final = 1  # the inode has rows in xattrs
    REMOVED: Final = 2  # a directory without a name, emptied in the background; nlink is 0
    LOCKED: Final = 4  # the inode cannot change any more, nor can any name in it
    HOLDS_LOCKED: Final = 8  # a directory with a protected inode below it, now or earlier
    IMMUTABLE: Final = 16  # the inode and its names cannot change until chattr -i
    APPEND_ONLY: Final = 32  # the file can only grow, until chattr -a
    PROTECTED: Final = LOCKED | IMMUTABLE | APPEND_ONLY


class PointInTime(NamedTuple):
    """A point in time as the user gives it: a clock time, a txg, or neither for the newest txg."""

    text: str  # as the user wrote it
    time_ns: int | None = None  # the time, if the user gave a time
    txg: Txg | None = None  # the number, if the user gave a txg
    is_ago: bool = False  # the user gave an age; this host's clock gave the time


NEWEST: Final = PointInTime("newest")


class Address(NamedTuple):
    """An IP address and a TCP port to listen on."""

    host: str
    port: int  # 0: any free port

    @property
    def is_loopback(self) -> bool:
        """Return whether only programs on this host can connect."""
        return ipaddress.ip_address(self.host).is_loopback

    @override
    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


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
    """The state of a cached block."""

    DIRTY = 1  # not yet in the bucket, writable in place
    SEALED = 2  # not yet in the bucket, frozen until its pack is uploaded
    UPLOADED = 3  # in the bucket, but the local row that records this is not yet synced
    CLEAN = 4  # in the bucket and evictable
    DOOMED = 5  # no row references the block; its file is deleted after the next background sync


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
    """One row of ``cached_blocks``: a block with a file in the cache."""

    block: BlockId
    state: BlockState
    ino: Ino
    block_index: BlockIndex


class AccessTime(enum.Enum):
    """When reading a file writes its access time; the values are options of mount(8)."""

    NEVER = "noatime"
    RELATIVE = "relatime"
    ALWAYS = "strictatime"
