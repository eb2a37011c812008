"""The types of values that all layers share: typed numbers and immutable tuples.

Owns: NewTypes and tuples. Does not know: SQLite, FUSE, stores.
Values that every request creates are NamedTuples: creating a NamedTuple from a database row takes
a third of the time of creating a frozen dataclass.
"""

import enum
import re
import stat
from typing import Final, NamedTuple, NewType

from s3fs_meta.limits import KEPT_NAME_CHARS_MAX

Ino = NewType("Ino", int)
BlockId = NewType("BlockId", int)  # number of a block; never reused
BlockIndex = NewType("BlockIndex", int)  # position of a block in its file, counted from 0
PackId = NewType("PackId", int)
Txg = NewType("Txg", int)  # transaction group
Epoch = NewType("Epoch", int)  # number in the lease, which every acquisition of the lease increases
Cookie = NewType("Cookie", int)  # position of a dentry in its directory, as readdir reports it
ObjectKey = NewType("ObjectKey", str)  # object key without the prefix, such as pack/3f/7-9a...

ROOT_INO: Final = Ino(1)

SPECIAL_TYPES: Final = frozenset({stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK})
FILE_TYPES: Final = SPECIAL_TYPES | {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}


class Attributes(NamedTuple):
    """One inode as stat(2) reports it; times are nanoseconds since 1970, UTC."""

    ino: Ino
    mode: int
    nlink: int
    uid: int
    gid: int
    size_bytes: int
    mapped_blocks: int  # number of blocks in the block map; holes are not counted
    ctime_ns: int
    mtime_ns: int
    atime_ns: int
    rdev: int
    parent: Ino  # the parent directory; for a file with hard links, one of the parents
    flags: int  # inode flags: bits of InodeFlag
    btime_ns: int  # creation time of the inode; never changes


class InodeFlag:
    """The bits of ``inodes.flags`` as integers, because testing an enumeration takes 1 us."""

    HAS_XATTRS: Final = 1  # the inode has extended attributes
    REMOVED: Final = 2  # the directory has no name (nlink 0) and is emptied in the background
    LOCKED: Final = 4  # the inode and its entries never change; rm --locked removes complete trees
    HOLDS_LOCKED: Final = 8  # the directory tree contains, or contained, a protected inode
    IMMUTABLE: Final = 16  # the inode cannot be changed until chattr -i
    APPEND_ONLY: Final = 32  # the file is append-only until chattr -a
    PROTECTED: Final = LOCKED | IMMUTABLE | APPEND_ONLY


class PointInTime(NamedTuple):
    """A point in time from the user: a clock time, a txg, a name, or the newest txg."""

    text: str  # the point in time as the user typed it
    time_ns: int | None = None  # wall-clock time; None if the user typed a txg or a name
    txg: Txg | None = None  # txg number; None if the user typed something else
    is_ago: bool = False  # True if time_ns was computed from an age such as 10m
    kept: str | None = None  # name of a kept point; None if the user typed something else


NEWEST: Final = PointInTime("newest")

# The name of a kept point starts with a letter, so it is never mistaken for a time or an age.
_KEPT_NAME: Final = re.compile(r"[^\W\d_][\w.+:@-]*")
_OTHER_POINTS: Final = frozenset({NEWEST.text, "now"})


def is_kept_name(text: str) -> bool:
    """Return whether a text is a valid name of a kept point; ``newest`` and ``now`` are not."""
    return (
        len(text) <= KEPT_NAME_CHARS_MAX
        and _KEPT_NAME.fullmatch(text) is not None
        and text.isprintable()
        and text.lower() not in _OTHER_POINTS
    )


class AbbreviatedLink(NamedTuple):
    """A position in the chain of changelogs, which ``mount`` prints and ``at_least=`` accepts."""

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

    DIRTY = 1  # the block is not in the bucket, and can be overwritten in place
    SEALED = 2  # the block is not in the bucket, and is frozen until its pack is uploaded
    UPLOADED = 3  # the block is in the bucket, but the row with its location is not durable
    CLEAN = 4  # the block is in the bucket and can be evicted
    DOOMED = 5  # no row refers to the block; the next background sync deletes its file


class PackState(enum.IntEnum):
    """The state of a pack object."""

    UPLOADING = 1  # the upload was recorded but not confirmed; the object may be missing
    STORED = 2  # the store has confirmed the object of the pack
    CONDEMNED = 3  # no new row may refer to the pack; it is deleted once no image needs it


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
    """The rule by which reads write access times; the values are options of mount(8)."""

    NEVER = "noatime"
    RELATIVE = "relatime"
    ALWAYS = "strictatime"
