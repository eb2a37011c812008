"""The values that all layers share: numbers with their own types, and immutable tuples.

Owns: NewTypes and tuples. Does not know: SQLite, FUSE, stores.
Values that every request creates are NamedTuples: creating one from a database row takes a third
of the time of a frozen dataclass.
"""

import enum
import ipaddress
import re
from typing import Final, NamedTuple, NewType

from typing_extensions import override

from s3fs_meta.limits import KEPT_NAME_CHARS_MAX

Ino = NewType("Ino", int)
BlockId = NewType("BlockId", int)  # number of a block, never reused
BlockIndex = NewType("BlockIndex", int)  # position of a block in its file, counted from 0
PackId = NewType("PackId", int)
Txg = NewType("Txg", int)  # transaction group
Epoch = NewType("Epoch", int)  # incremented by every read-write mount
Cookie = NewType("Cookie", int)  # position of a dentry in its directory, for readdir
ObjectKey = NewType("ObjectKey", str)  # key below the bucket prefix, such as pack/3f/7-9a...

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
    parent: Ino  # exact for directories; for other inodes a directory with one of its names
    flags: int  # InodeFlag
    btime_ns: int  # creation time; never changes


class InodeFlag:
    """Bits of ``inodes.flags``: integers, because testing an enumeration takes a microsecond."""

    HAS_XATTRS: Final = 1  # the inode has rows in xattrs
    REMOVED: Final = 2  # a directory without a name, emptied in the background; nlink is 0
    LOCKED: Final = 4  # the inode, and the names in it, can never be changed
    HOLDS_LOCKED: Final = 8  # a directory that has or had a protected inode below it
    IMMUTABLE: Final = 16  # the inode and its names cannot change until chattr -i
    APPEND_ONLY: Final = 32  # the file can only grow, until chattr -a
    PROTECTED: Final = LOCKED | IMMUTABLE | APPEND_ONLY


class PointInTime(NamedTuple):
    """A point in time from the user: a clock time, a txg, a name, or the newest txg."""

    text: str  # the user's text
    time_ns: int | None = None  # the time, if the user gave a time
    txg: Txg | None = None  # the number, if the user gave a txg
    is_ago: bool = False  # the user gave an age, from which this host's clock computed the time
    kept: str | None = None  # the name of a kept point, if the user gave a name


NEWEST: Final = PointInTime("newest")

# A name begins with a letter, so it is never a time, an age or txg=N.
_KEPT_NAME: Final = re.compile(r"[^\W\d_][\w.+:@-]*")
_OTHER_POINTS: Final = frozenset({NEWEST.text, "now"})


def is_kept_name(text: str) -> bool:
    """Return whether a text can be the name of a kept point, and means no other point in time."""
    return (
        len(text) <= KEPT_NAME_CHARS_MAX
        and _KEPT_NAME.fullmatch(text) is not None
        and text.isprintable()
        and text.lower() not in _OTHER_POINTS
    )


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
    """A position in the chain of changelogs, as printed by mount and given to at_least=."""

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

    UPLOADING = 1  # recorded before the PUT, so the object may or may not exist
    STORED = 2  # confirmed by the store
    CONDEMNED = 3  # deletion decided; no new references; deleted when no retained image needs it


class BlockRow(NamedTuple):
    """One row of ``blocks``; the pack fields are None until the block is uploaded."""

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
