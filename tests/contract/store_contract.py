"""The contract of object stores: the cases that ``test_stores`` runs on every store.

A case is an async function that receives an empty store. It tests one promise of the docstring of
``ObjectStore``.
"""

import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import pytest
import trio

from s3fs_meta.errors import (
    FormatError,
    InvalidRequestError,
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
    StoreError,
)
from s3fs_meta.limits import (
    KEY_BYTES_MAX,
    KEY_COMPONENT_BYTES_MAX,
    LIST_PAGE_KEYS,
    PACK_BYTES_MAX,
    RANGE_BYTES_MAX,
)
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.probe import probe

Case = Callable[[ObjectStore], Awaitable[None]]

CASES: Final[list[Case]] = []
LONG_CASES: Final[list[Case]] = []  # cases with more than 1,000 requests
SLOW_CASES: Final[list[Case]] = []

KEY: Final = ObjectKey("pack/3f/7-9a")
OTHER: Final = ObjectKey("pack/3f/7-9b")


def case(function: Case) -> Case:
    """Add a case to the suite."""
    CASES.append(function)
    return function


async def keys_of(store: ObjectStore, prefix: str = "", *, after: str = "") -> list[str]:
    """Return the keys of a listing."""
    return [info.key async for info in store.list(prefix, after=after)]


async def put_all(store: ObjectStore, keys: Iterable[str], data: bytes = b"content") -> None:
    """Put objects with four tasks at a time."""
    todo = iter(keys)

    async def worker() -> None:
        for key in todo:
            await store.put(ObjectKey(key), data)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(worker)


def numbered(count: int) -> list[str]:
    """Return a number of keys in ascending order."""
    return [f"many/{number:05}" for number in range(count)]


# --- put and get ---------------------------------------------------------------------------------


@case
async def get_returns_what_put_stored(store: ObjectStore) -> None:
    """Every byte value is stored unchanged."""
    await store.put(KEY, bytes(range(256)))

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == bytes(range(256))


@case
async def empty_object_is_an_object(store: ObjectStore) -> None:
    """An empty object can be read and is listed."""
    await store.put(KEY, b"")

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b""
    assert [info[:2] async for info in store.list("")] == [(KEY, 0)]


@case
async def large_object_comes_back_whole(store: ObjectStore) -> None:
    """Seven megabytes of random bytes, more than any buffer, are returned unchanged."""
    data = os.urandom(7_000_001)
    await store.put(KEY, data)

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == data
    assert await store.get_range(KEY, 3_000_000, 6_000_001) == data[3_000_000:6_000_001]


@case
async def put_takes_a_view_that_is_reused_afterwards(store: ObjectStore) -> None:
    """The caller may change the buffer after put, create or replace returns."""
    buffer = bytearray(b"..content..")
    await store.put(KEY, memoryview(buffer)[2:-2])
    etag = await store.create(OTHER, memoryview(buffer)[2:-2])
    await store.replace(OTHER, memoryview(buffer)[2:-1], etag)
    buffer[:] = bytes(len(buffer))

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"content"
    assert (await store.get(OTHER, PACK_BYTES_MAX)).data == b"content."


@case
async def put_replaces(store: ObjectStore) -> None:
    """A shorter object replaces a longer one completely."""
    await store.put(KEY, b"a longer content")
    await store.put(KEY, b"short")

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"short"


@case
async def missing_object_raises_with_its_key(store: ObjectStore) -> None:
    """The error for a missing object has its key."""
    for read in (store.get(KEY, PACK_BYTES_MAX), store.get_range(KEY, 0, 1)):
        with pytest.raises(ObjectMissingError) as caught:
            await read
        assert caught.value.key == KEY


@case
async def beginning_of_a_key_is_no_object(store: ObjectStore) -> None:
    """A prefix of a key is not an object, and an object has no objects below it."""
    await store.put(KEY, b"content")

    for key in ("pack", "pack/3f", f"{KEY}/more"):
        with pytest.raises(ObjectMissingError):
            await store.get(ObjectKey(key), PACK_BYTES_MAX)


@case
async def object_that_is_larger_than_its_reader_takes_is_refused(store: ObjectStore) -> None:
    """A prefix of a key is no object, and neither is a key with an object's key as a prefix."""
    await store.put(KEY, bytes(1000))

    assert (await store.get(KEY, 1000)).data == bytes(1000)
    with pytest.raises(ObjectTooLargeError) as caught:
        await store.get(KEY, 999)

    assert (caught.value.key, caught.value.size_bytes, caught.value.max_bytes) == (KEY, 1000, 999)
    await store.replace(KEY, b"small", caught.value.etag)
    assert (await store.get(KEY, 999)).data == b"small"


# --- ranges --------------------------------------------------------------------------------------


@case
async def ranges_are_exact(store: ObjectStore) -> None:
    """A range may be the first byte, the last byte, a part, or the complete object."""
    await store.put(KEY, b"0123456789")

    assert await store.get_range(KEY, 0, 1) == b"0"
    assert await store.get_range(KEY, 9, 10) == b"9"
    assert await store.get_range(KEY, 3, 7) == b"3456"
    assert await store.get_range(KEY, 0, 10) == b"0123456789"


@case
async def range_past_the_end_is_damage(store: ObjectStore) -> None:
    """A range across or after the end of an object raises FormatError with its key."""
    await store.put(KEY, b"0123456789")
    await store.put(OTHER, b"")

    for key, start, stop in ((KEY, 9, 11), (KEY, 10, 11), (KEY, 100, 200), (OTHER, 0, 1)):
        with pytest.raises(FormatError) as caught:
            await store.get_range(key, start, stop)
        assert caught.value.key == key


@case
async def impossible_range_is_damage(store: ObjectStore) -> None:
    """An invalid range raises FormatError, because its bounds may come from a corrupt row."""
    await store.put(KEY, b"0123456789")

    for start, stop in ((5, 5), (7, 3), (-1, 3), (0, RANGE_BYTES_MAX + 1), (1 << 62, 1 << 63)):
        with pytest.raises(FormatError) as caught:
            await store.get_range(KEY, start, stop)
        assert caught.value.key == KEY


# --- conditional writes --------------------------------------------------------------------------


@case
async def create_takes_a_free_key_once(store: ObjectStore) -> None:
    """A second create of a key fails and changes nothing, even with the same bytes."""
    await store.create(KEY, b"first")

    for data in (b"second", b"first"):
        with pytest.raises(PreconditionError):
            await store.create(KEY, data)
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"first"


@case
async def create_may_follow_a_delete(store: ObjectStore) -> None:
    """A deleted key can be created again."""
    await store.create(KEY, b"first")
    await store.delete([KEY])
    await store.create(KEY, b"second")

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"second"


@case
async def replace_follows_the_versions(store: ObjectStore) -> None:
    """A tag is valid for one replacement, whichever request returned it."""
    created = await store.create(KEY, b"1")
    assert (await store.get(KEY, PACK_BYTES_MAX)).etag == created
    replaced = await store.replace(KEY, b"2", created)
    assert (await store.get(KEY, PACK_BYTES_MAX)) == (b"2", replaced)
    await store.replace(KEY, b"3", (await store.get(KEY, PACK_BYTES_MAX)).etag)

    for outdated in (created, replaced):
        with pytest.raises(PreconditionError):
            await store.replace(KEY, b"4", outdated)
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"3"


@case
async def replace_of_nothing_is_refused(store: ObjectStore) -> None:
    """A replacement of a deleted object fails, and creates no object."""
    etag = await store.create(KEY, b"1")
    await store.delete([KEY])

    with pytest.raises(PreconditionError):
        await store.replace(KEY, b"2", etag)
    assert await keys_of(store) == []


@case
async def one_of_many_creators_wins(store: ObjectStore) -> None:
    """Exactly one concurrent create succeeds, and its bytes are stored."""
    winners: list[bytes] = []

    async def create(data: bytes) -> None:
        try:
            await store.create(KEY, data)
        except PreconditionError:
            return
        winners.append(data)

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(create, b"%d" % number)

    assert [(await store.get(KEY, PACK_BYTES_MAX)).data] == winners


@case
async def compare_and_set_loses_no_update(store: ObjectStore) -> None:
    """Four tasks increment one counter to twenty."""
    await store.create(KEY, b"0")

    async def count(times: int) -> None:
        while times:
            present = await store.get(KEY, PACK_BYTES_MAX)
            try:
                await store.replace(KEY, b"%d" % (int(present.data) + 1), present.etag)
            except PreconditionError:
                continue
            times -= 1

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(count, 5)

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"20"


@case
async def probe_finds_the_conditions_honoured(store: ObjectStore) -> None:
    """The probe reports that the store honours conditions, and leaves no object."""
    assert await probe(store, "c0ffee")

    assert await keys_of(store) == []


@case
async def reader_sees_old_or_new_never_a_mixture(store: ObjectStore) -> None:
    """A reader beside two writers always gets the complete object of one of them."""
    contents = [bytes([letter]) * 50_000 for letter in b"ab"]
    await store.put(KEY, contents[0])

    async def write(content: bytes) -> None:
        for _ in range(5):
            await store.put(KEY, content)

    async with trio.open_nursery() as nursery:
        for content in contents:
            nursery.start_soon(write, content)
        for _ in range(10):
            assert (await store.get(KEY, PACK_BYTES_MAX)).data in contents

    assert (await store.get(KEY, PACK_BYTES_MAX)).data in contents


# --- delete --------------------------------------------------------------------------------------


@case
async def delete_takes_what_is_there(store: ObjectStore) -> None:
    """Deleting a missing key, or no key at all, is no error; other objects stay."""
    await put_all(store, [KEY, OTHER])

    await store.delete([])
    await store.delete([KEY, ObjectKey("missing"), ObjectKey("miss/ing")])
    await store.delete([KEY])

    assert await keys_of(store) == [OTHER]


# --- list ----------------------------------------------------------------------------------------


@case
async def list_ascends_by_bytes(store: ObjectStore) -> None:
    """Keys are sorted by bytes, also around '-', '.', '/' and '0'."""
    keys = ["a/b/c", "a/b-c", "a/b0", "a-b", "a.b/c", "a0", "B", "lease", "image/1-1-a/manifest"]
    await put_all(store, keys)

    assert await keys_of(store) == sorted(keys)


@case
async def list_takes_any_beginning(store: ObjectStore) -> None:
    """A prefix of a listing may end within a component; the listing has sizes of objects."""
    for key, data in (("pack/3f/1", b"1"), ("pack/3e/22", b"22"), ("packs", b""), ("o", b"")):
        await store.put(ObjectKey(key), data)

    assert await keys_of(store, "pack") == ["pack/3e/22", "pack/3f/1", "packs"]
    assert await keys_of(store, "pack/") == ["pack/3e/22", "pack/3f/1"]
    assert await keys_of(store, "pack/3f/1") == ["pack/3f/1"]
    assert await keys_of(store, "pack/3g") == []
    assert await keys_of(store, "nothing/here/") == []
    assert [info[:2] async for info in store.list("pack/3")] == [
        ("pack/3e/22", 2),
        ("pack/3f/1", 1),
    ]


@case
async def list_goes_on_behind_a_key(store: ObjectStore) -> None:
    """A listing begins after a given key, which need not exist."""
    await put_all(store, ["a/1", "a/2", "a/3", "b/1"])

    assert await keys_of(store, "a/", after="a/1") == ["a/2", "a/3"]
    assert await keys_of(store, "a/", after="a/2a") == ["a/3"]
    assert await keys_of(store, "", after="a/3") == ["b/1"]
    assert await keys_of(store, "a/", after="b") == []


async def check_pages(store: ObjectStore, count: int) -> None:
    """Put, list and delete *count* objects, some of which are beyond the first page."""
    keys = numbered(count)
    await put_all(store, keys)

    assert await keys_of(store, "many/") == keys
    assert await keys_of(store, after=keys[5]) == keys[6:]
    await store.delete([ObjectKey(key) for key in keys])
    assert await keys_of(store) == []


async def list_crosses_the_border_of_a_page(store: ObjectStore) -> None:
    """A page of a listing plus one object is listed completely, and deleted in two batches."""
    await check_pages(store, LIST_PAGE_KEYS + 1)


async def list_crosses_two_borders(store: ObjectStore) -> None:
    """A listing of three pages is complete."""
    await check_pages(store, 2 * LIST_PAGE_KEYS + 1)


LONG_CASES.append(list_crosses_the_border_of_a_page)
SLOW_CASES.append(list_crosses_two_borders)


@case
async def list_may_be_left_early(store: ObjectStore) -> None:
    """A reader may close a listing before its end."""
    await put_all(store, ["a", "b", "c"])
    found = store.list("")

    assert (await found.__anext__()).key == "a"
    await found.aclose()

    assert await keys_of(store) == ["a", "b", "c"]


# --- keys ----------------------------------------------------------------------------------------


@case
async def longest_key_is_stored(store: ObjectStore) -> None:
    """A key and a component of maximum length can be stored, listed and deleted."""
    component = "c" * KEY_COMPONENT_BYTES_MAX
    key = ObjectKey(f"{component}/{'k' * (KEY_BYTES_MAX - len(component) - 1)}")
    await store.put(key, b"content")

    assert (await store.get(key, PACK_BYTES_MAX)).data == b"content"
    assert await keys_of(store) == [key]
    await store.delete([key])
    assert await keys_of(store) == []


@case
async def printable_keys_survive_every_escaping(store: ObjectStore) -> None:
    """Keys with special characters survive URLs, and the XML of listings and batch deletes."""
    keys = ["a b", "a+b", "a%20b", "a&b;c", "a<b>", "a'b\"c", "a=b:c@d,e!f(g)~", "a#b[c]", "a*?"]
    await put_all(store, keys)

    assert await keys_of(store) == sorted(keys)
    assert (await store.get(ObjectKey("a%20b"), PACK_BYTES_MAX)).data == b"content"
    await store.delete([ObjectKey(key) for key in keys])
    assert await keys_of(store) == []


@case
async def unsafe_keys_are_refused(store: ObjectStore) -> None:
    """Every method refuses an unsafe key before it sends a request."""
    for text in ("", "/a", "a/", "a//b", "a/../b", ".", "ä", "a\nb", "c" * 256, "a\\b"):
        key = ObjectKey(text)
        for request in (
            store.get(key, PACK_BYTES_MAX),
            store.get_range(key, 0, 1),
            store.put(key, b""),
            store.create(key, b""),
            store.replace(key, b"", "etag"),
            store.delete([key]),
        ):
            with pytest.raises(InvalidRequestError):
                await request


# --- cancellation and the rest -------------------------------------------------------------------


@case
async def cancelled_write_leaves_old_or_new(store: ObjectStore) -> None:
    """After a cancelled put the object has its old or its new content, and the store works."""
    contents = [b"old" * 10_000, b"new" * 1_000_000]
    await store.put(KEY, contents[0])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.put, KEY, contents[1])
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()

    assert (await store.get(KEY, PACK_BYTES_MAX)).data in contents
    await store.put(OTHER, b"content")
    assert (await store.get(OTHER, PACK_BYTES_MAX)).data == b"content"


@case
async def time_is_that_of_stored_objects(store: ObjectStore) -> None:
    """The store's current time and the times of its objects come from one clock.

    Servers truncate times to seconds.
    """
    before = await store.now_ns()
    await store.put(KEY, b"content")
    after = await store.now_ns()
    [found] = [info async for info in store.list(KEY)]

    assert before is not None
    assert after is not None
    assert found.modified_ns is not None
    assert before - 10**9 <= found.modified_ns <= after + 10**9
    assert not [key for key in await keys_of(store) if key != KEY]
    if not store.has_own_clock:
        assert (
            abs(after - time.time_ns()) < 60 * 10**9
            # Without a clock of its own, the store uses that of this host or of a network disk's
            # server.
        )


@case
async def every_method_notices_a_cancellation(store: ObjectStore) -> None:
    """Each method has a schedule point, at which a cancelled task ends."""
    await store.put(KEY, b"content")
    for request in (
        lambda: store.get(KEY, PACK_BYTES_MAX),
        lambda: store.get_range(KEY, 0, 1),
        lambda: store.put(KEY, b"content"),
        lambda: store.create(OTHER, b"content"),
        lambda: store.replace(KEY, b"content", "etag"),
        lambda: store.delete([]),
        store.now_ns,
        lambda: keys_of(store),
    ):
        with trio.CancelScope() as scope:
            scope.cancel()
            await request()
        assert scope.cancelled_caught


@case
async def many_requests_at_once_all_succeed(store: ObjectStore) -> None:
    """30 requests succeed at once, although the store has fewer threads."""
    await store.put(KEY, b"0123456789")
    answers: list[bytes] = []

    async def read() -> None:
        answers.append(await store.get_range(KEY, 2, 5))

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(read)

    assert answers == [b"234"] * 30


@case
async def url_names_the_place(store: ObjectStore) -> None:
    """The URL of a store has a scheme, and its error messages have one line."""
    assert ":" in store.url
    with pytest.raises(StoreError) as caught:
        await store.get(KEY, PACK_BYTES_MAX)
    assert "\n" not in caught.value.message
