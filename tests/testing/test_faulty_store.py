"""testing.faulty_store: it fails as ordered, and only then."""

import pytest
import trio

from s3fs_meta.codec.envelope import decode, encode
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, StoreAccessError, TransientStoreError
from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.testing.faulty_store import ANY, Call, FaultyStore

KEY = ObjectKey("lease")


@pytest.fixture
def faulty() -> FaultyStore:
    """Return a store with one object."""
    memory = MemoryStore()
    memory.objects[KEY] = b"0123456789"
    return FaultyStore(memory)


async def test_failure_is_of_the_next_calls_of_one_method(faulty: FaultyStore) -> None:
    """The failing calls have no effect, and other methods work."""
    faulty.fail("put", times=2)

    for _ in range(2):
        with pytest.raises(TransientStoreError):
            await faulty.put(KEY, b"new")
        assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123456789"
    await faulty.put(KEY, b"new")
    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"new"


async def test_failure_of_any_method_hits_the_next_call(faulty: FaultyStore) -> None:
    """The next call of any method raises the programmed error."""
    faulty.fail(ANY, StoreAccessError(KEY, "AccessDenied", "ask"))

    with pytest.raises(StoreAccessError):
        await faulty.get(KEY, PACK_BYTES_MAX)
    await faulty.get(KEY, PACK_BYTES_MAX)


async def test_lost_reply_belongs_to_an_executed_request(faulty: FaultyStore) -> None:
    """The caller cannot distinguish a lost reply from a failure."""
    faulty.lose_reply("put")

    with pytest.raises(TransientStoreError):
        await faulty.put(KEY, b"new")

    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"new"


async def test_corrupt_answer_differs_in_one_bit(faulty: FaultyStore) -> None:
    """One bit of an object or range is flipped; the length is correct."""
    faulty.corrupt("get")
    faulty.corrupt("get_range")

    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123446789"
    assert await faulty.get_range(KEY, 0, 1) == b"1"


async def test_short_answer_is_half(faulty: FaultyStore) -> None:
    """One answer has half of its bytes."""
    faulty.shorten("get")

    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"01234"
    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123456789"


async def test_damaged_answers_do_not_pass_the_codec(faulty: FaultyStore) -> None:
    """The reader of an object finds damage that no store can notice."""
    keyring = Keyring(None, bytes(32))
    await faulty.put(KEY, encode(b"test", KEY, b"payload", keyring))
    faulty.corrupt("get")
    faulty.shorten("get")

    for _ in range(2):
        with pytest.raises(FormatError):
            decode(b"test", KEY, (await faulty.get(KEY, PACK_BYTES_MAX)).data, keyring)
    assert decode(b"test", KEY, (await faulty.get(KEY, PACK_BYTES_MAX)).data, keyring) == b"payload"


async def test_outage_lasts_until_it_is_ended(faulty: FaultyStore) -> None:
    """Every method fails with the same error during an outage."""
    faulty.down = TransientStoreError(KEY, "down")
    for request in (faulty.get(KEY, PACK_BYTES_MAX), faulty.put(KEY, b""), faulty.delete([KEY])):
        with pytest.raises(TransientStoreError, match="down"):
            await request

    faulty.down = None
    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123456789"


async def test_gate_holds_a_call_before_it_does_anything(faulty: FaultyStore) -> None:
    """A blocked call has no effect until the gate is opened."""
    gate = faulty.hold("put")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(faulty.put, KEY, b"new")
        await gate.wait_started()
        assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123456789"
        gate.open()

    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"new"


async def test_store_without_conditions_lets_everybody_win(faulty: FaultyStore) -> None:
    """Conditional writes always succeed, as on some real servers."""
    faulty.ignores_conditions = True

    etag = await faulty.create(KEY, b"1")
    await faulty.replace(KEY, b"2", "another version")

    assert await faulty.replace(KEY, b"1", "a third") == etag


async def test_calls_are_remembered(faulty: FaultyStore) -> None:
    """Calls are recorded in order with their keys, also failed ones."""
    faulty.fail("get")
    with pytest.raises(TransientStoreError):
        await faulty.get(KEY, PACK_BYTES_MAX)
    await faulty.delete([KEY, ObjectKey("other")])
    assert [info async for info in faulty.list("l")] == []

    assert faulty.calls == [Call("get", KEY), Call("delete", KEY), Call("list", "l")]
