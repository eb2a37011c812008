"""Tests of the faulty store in ``s3fs_meta.testing``, which simulates store errors."""

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
    """Return a faulty store with one object."""
    memory = MemoryStore()
    memory.objects[KEY] = b"0123456789"
    return FaultyStore(memory)


async def test_faulty_store_fails_the_given_number_of_calls(faulty: FaultyStore) -> None:
    """The next two calls of put fail without effect.

    Later calls of put and all calls of get succeed.
    """
    faulty.fail("put", times=2)

    for _ in range(2):
        with pytest.raises(TransientStoreError):
            await faulty.put(KEY, b"new")
        assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123456789"
    await faulty.put(KEY, b"new")
    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"new"


async def test_faulty_store_fails_only_the_next_call_of_any_method(faulty: FaultyStore) -> None:
    faulty.fail(ANY, StoreAccessError(KEY, "AccessDenied", "ask"))

    with pytest.raises(StoreAccessError):
        await faulty.get(KEY, PACK_BYTES_MAX)
    await faulty.get(KEY, PACK_BYTES_MAX)


async def test_faulty_store_executes_a_request_and_loses_its_reply(faulty: FaultyStore) -> None:
    """If a reply is lost, the caller gets an error although the store executed the request."""
    faulty.lose_reply("put")

    with pytest.raises(TransientStoreError):
        await faulty.put(KEY, b"new")

    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"new"


async def test_corrupt_store_response_differs_in_one_bit(faulty: FaultyStore) -> None:
    """One bit of the object or range is flipped, and the length is correct."""
    faulty.corrupt("get")
    faulty.corrupt("get_range")

    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123446789"
    assert await faulty.get_range(KEY, 0, 1) == b"1"


async def test_truncated_store_response_has_half_of_its_bytes(faulty: FaultyStore) -> None:
    faulty.shorten("get")

    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"01234"
    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123456789"


async def test_decoder_refuses_damaged_responses_of_the_faulty_store(faulty: FaultyStore) -> None:
    """The codec refuses damaged responses, which the store itself cannot detect."""
    keyring = Keyring(None, bytes(32))
    await faulty.put(KEY, encode(b"test", KEY, b"payload", keyring))
    faulty.corrupt("get")
    faulty.shorten("get")

    for _ in range(2):
        with pytest.raises(FormatError):
            decode(b"test", KEY, (await faulty.get(KEY, PACK_BYTES_MAX)).data, keyring)
    assert decode(b"test", KEY, (await faulty.get(KEY, PACK_BYTES_MAX)).data, keyring) == b"payload"


async def test_store_outage_affects_every_method_until_the_test_ends_it(
    faulty: FaultyStore,
) -> None:
    faulty.down = TransientStoreError(KEY, "down")
    for request in (faulty.get(KEY, PACK_BYTES_MAX), faulty.put(KEY, b""), faulty.delete([KEY])):
        with pytest.raises(TransientStoreError, match="down"):
            await request

    faulty.down = None
    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123456789"


async def test_gate_blocks_a_store_call_before_it_has_an_effect(faulty: FaultyStore) -> None:
    gate = faulty.hold("put")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(faulty.put, KEY, b"new")
        await gate.wait_started()
        assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"0123456789"
        gate.open()

    assert (await faulty.get(KEY, PACK_BYTES_MAX)).data == b"new"


async def test_store_that_ignores_conditions_accepts_every_write(faulty: FaultyStore) -> None:
    """If *ignores_conditions* is true, every conditional write succeeds."""
    faulty.ignores_conditions = True

    etag = await faulty.create(KEY, b"1")
    await faulty.replace(KEY, b"2", "another version")

    assert await faulty.replace(KEY, b"1", "a third") == etag


async def test_store_calls_are_recorded_in_order(faulty: FaultyStore) -> None:
    """The list of calls contains the method and key of each call, including failed calls."""
    faulty.fail("get")
    with pytest.raises(TransientStoreError):
        await faulty.get(KEY, PACK_BYTES_MAX)
    await faulty.delete([KEY, ObjectKey("other")])
    assert [info async for info in faulty.list("l")] == []

    assert faulty.calls == [Call("get", KEY), Call("delete", KEY), Call("list", "l")]
