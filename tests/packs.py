"""Packs in the bucket to which no database row refers."""

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.pack import PackWriter, new_key
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino, ObjectKey


def stray_pack(
    keyring: Keyring,
    epoch: int,
    random: bytes = bytes(16),
    block: int = 1,
    content: bytes = b"stray",
) -> tuple[ObjectKey, bytes]:
    """Return the key and the bytes of a pack with one block."""
    key = new_key(Epoch(epoch), random)
    writer = PackWriter(key, keyring, "none")
    writer.add(BlockId(block), Ino(2), BlockIndex(0), keyring.block_hash(content), content)
    return key, bytes(writer.finish().data)
