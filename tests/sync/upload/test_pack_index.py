"""Reads of a pack's index, which show whether the pack belongs to this filesystem."""

import pytest

from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, TransientStoreError
from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino, ObjectKey
from s3fs_meta.objects.contract import ObjectInfo
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.upload.pack_index import is_ours, read_index
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.packs import stray_pack

PLAIN = Keyring(None, bytes(32))
ENCRYPTED = Keyring.from_master(bytes(32))


@pytest.mark.parametrize(("blocks", "requests"), [(10, 1), (3000, 2)])
async def test_read_of_a_pack_index_sends_at_most_two_requests(blocks: int, requests: int) -> None:
    """The first request reads the end of the pack; a second request reads the rest of the index."""
    key = pack_codec.new_key(Epoch(1), bytes(16))
    writer = pack_codec.PackWriter(key, PLAIN, "none")
    for number in range(blocks):
        content = b"%d" % number
        writer.add(BlockId(number), Ino(5), BlockIndex(0), PLAIN.block_hash(content), content)
    pack = writer.finish()
    memory = MemoryStore()
    memory.objects[key] = bytes(pack.data)
    store = FaultyStore(memory)

    assert await read_index(store, PLAIN, key, len(pack.data)) == pack.entries
    assert len(store.calls) == requests


@pytest.mark.parametrize("size_bytes", [0, -1, PACK_BYTES_MAX + 1])
async def test_pack_of_an_impossible_size_is_refused_without_a_request(size_bytes: int) -> None:
    store = FaultyStore(MemoryStore())
    with pytest.raises(FormatError, match="impossible size for a pack"):
        await read_index(store, PLAIN, pack_codec.new_key(Epoch(1), bytes(16)), size_bytes)
    assert store.calls == []


async def test_own_pack_is_recognised_only_by_its_keys_and_object_key() -> None:
    """An object belongs to this filesystem only if its content is authentic under its key."""
    store = MemoryStore()
    key, data = stray_pack(PLAIN, 3)
    other = pack_codec.new_key(Epoch(3), b"x" * 16)
    notes = ObjectKey("pack/notes.txt")

    async def ours(name: ObjectKey, content: bytes, keyring: Keyring = PLAIN) -> bool:
        store.objects[name] = content
        return await is_ours(store, keyring, ObjectInfo(name, len(content)))

    assert await ours(key, data)
    assert not await ours(key, data, Keyring(None, bytes(range(32))))
    assert not await ours(key, data, ENCRYPTED)
    assert not await ours(other, data)
    assert not await ours(notes, data)
    assert not await ours(key, flipped(data, len(data) - 20))
    assert not await ours(key, b"")
    assert not await is_ours(store, PLAIN, ObjectInfo(ObjectKey(other + "0"), 10))


async def test_check_whether_a_pack_belongs_to_this_filesystem_fails_during_an_outage() -> None:

    store = FaultyStore(MemoryStore())
    store.fail("get_range")

    with pytest.raises(TransientStoreError):
        await is_ours(store, PLAIN, ObjectInfo(pack_codec.new_key(Epoch(1), bytes(16)), 100))
