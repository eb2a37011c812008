"""Reading packs in the bucket: an index, which also proves the origin, or a complete pack.

Owns: reading an index or a pack with at most two requests, and the blocks of a complete pack.
Does not know: the purpose of a read.
Keeps: an object is treated as a pack of this filesystem only if the keys of this filesystem verify
its index and trailer. A name in the form of a pack name proves nothing.
"""

from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, ObjectMissingError, ObjectTooLargeError
from s3fs_meta.limits import PACK_BYTES_MAX, PACK_TAIL_BYTES
from s3fs_meta.model import BlockRow, ObjectKey
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore


async def read_index(
    store: ObjectStore, keyring: Keyring, key: ObjectKey, object_bytes: int
) -> list[pack_codec.PackEntry]:
    """Fetch and verify the index of one pack, with at most two requests.

    Raises:
        FormatError: the object does not end with a valid index.
        StoreError: the object is unavailable.
    """
    if not 0 < object_bytes <= PACK_BYTES_MAX:
        raise FormatError(
            key, f"the object has an impossible size for a pack: {object_bytes} bytes"
        )
    start = max(object_bytes - PACK_TAIL_BYTES, 0)
    tail = await store.get_range(key, start, object_bytes)
    needed = pack_codec.index_tail_bytes(key, tail, object_bytes)
    if needed > len(tail):
        tail = await store.get_range(key, object_bytes - needed, object_bytes)
    return pack_codec.read_index(keyring, key, tail, object_bytes)


async def is_ours(store: ObjectStore, keyring: Keyring, info: ObjectInfo) -> bool:
    """Return whether a listed object is a pack that this filesystem wrote.

    Raises:
        StoreError: the object cannot be read.
    """
    if pack_codec.parse_key(info.key) is None:
        return False
    try:
        await read_index(store, keyring, info.key, info.size_bytes)
    except (FormatError, ObjectMissingError):
        return False
    return True


async def read_pack(store: ObjectStore, key: ObjectKey) -> bytes:
    """Return the bytes of a pack, at most PACK_BYTES_MAX, or b"" if the object is missing.

    Raises:
        StoreError: the object is unavailable.
    """
    try:
        return (await store.get(key, PACK_BYTES_MAX)).data
    except ObjectMissingError:
        return b""
    except ObjectTooLargeError:  # bytes after the end of a pack do not affect its blocks
        return bytes(await store.get_range(key, 0, PACK_BYTES_MAX))


def block_in(keyring: Keyring, key: ObjectKey, data: bytes, row: BlockRow) -> bytes:
    """Return the content of a block from the bytes of its complete pack. The call blocks.

    Args:
        row: a row with a location, from ``meta.tables.blocks``, so its values are valid.

    Raises:
        FormatError: the bytes do not match the row.
    """
    offset, stored_bytes = row.pack_offset, row.stored_bytes
    assert row.hash is not None, "a block in a pack has a hash"
    assert offset is not None, "a block in a pack has an offset"
    assert stored_bytes is not None, "a block in a pack has a stored length"
    stored = memoryview(data)[offset : offset + stored_bytes]
    if len(stored) != stored_bytes:
        raise FormatError(key, f"the object ends at byte {len(data)}, before the end of a block")
    return pack_codec.open_block(keyring, key, stored, offset, row.plain_bytes, row.hash)
