"""Index entries and keys of packs, from which tests rebuild rows."""

from s3fs_meta.codec.pack import PackEntry
from s3fs_meta.model import BlockId, BlockIndex, Ino, ObjectKey


def entry(block: int, ino: int, index: int, plain_bytes: int = 10) -> PackEntry:
    """Return one entry for the index of a pack."""
    return PackEntry(
        block=BlockId(block),
        hash=bytes([block]) * 32,
        plain_bytes=plain_bytes,
        offset=block * 100,
        stored_bytes=20,
        ino=Ino(ino),
        block_index=BlockIndex(index),
    )


def key(number: int, epoch: int = 1) -> ObjectKey:
    """Return the key of a pack."""
    return ObjectKey(f"pack/00/{epoch}-{number:032x}")
