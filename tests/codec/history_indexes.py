"""An example object of the history index, for tests."""

from s3fs_meta.codec.history_index import (
    ChangedInode,
    HistoryIndex,
    Inodes,
    RemovedName,
    RemovedNames,
)
from s3fs_meta.codec.image import content_hash
from s3fs_meta.model import Cookie, Ino, Txg

NAMES = (
    RemovedName(Ino(1), b"", Cookie(700), Ino(9), 1),
    RemovedName(Ino(1), b"draft.txt", Cookie(0), Ino(40), 1 << 31),
    RemovedName(Ino(1), b"draft.txt", Cookie(0), Ino(41), 3),
    RemovedName(Ino(7), b"\xff\n", Cookie(0), Ino(2), 5),
)

INODES = (
    ChangedInode(Ino(1), 1 << 31 | 3, 0),
    ChangedInode(Ino(9), 0, 1),
    ChangedInode(Ino(2**62), 4, 1 << 31),
)

INDEX = HistoryIndex(
    level=2,
    last=Txg(2048),
    uuid="01234567-89ab-cdef-0123-456789abcdef",
    first_ns=1_700_000_000_000_000_000,
    created_ns=1_700_000_100_000_000_000,
    previous=content_hash(b"changelog 1024"),
    hash=content_hash(b"changelog 2048"),
    unknown=1 << 5,
    inodes=Inodes.of(INODES),
    names=RemovedNames.of(NAMES),
)

KEY = INDEX.key
