"""The contract of object stores: test cases that ``test_stores`` runs on every store.

A case is an async function that receives an empty store. It tests one promise that the docstring of
``ObjectStore`` makes.
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
from tests.tasks import running

Case = Callable[[ObjectStore], Awaitable[None]]

CASES: Final[list[Case]] = []
LONG_CASES: Final[list[Case]] = []  # These test cases send more than 1,000 requests.
SLOW_CASES: Final[list[Case]] = []

KEY: Final = ObjectKey("pack/3f/7-9a")
OTHER: Final = ObjectKey("pack/3f/7-9b")


def case(function: Case) -> Case:
    """Add a test case to the contract suite."""
    CASES.append(function)
    return function


async def keys_of(store: ObjectStore, prefix: str = "", *, after: str = "") -> list[str]:
    """Return the keys in a listing of the store."""
    return [info.key async for info in store.list(prefix, after=after)]


async def put_all(store: ObjectStore, keys: Iterable[str], data: bytes = b"content") -> None:
    """Upload objects with four concurrent tasks."""
    todo = iter(keys)

    async def worker() -> None:
        for key in todo:
            await store.put(ObjectKey(key), data)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(worker)


def numbered(count: int) -> list[str]:
    """Return *count* keys in ascending order."""
    return [f"many/{number:05}" for number in range(count)]


# --- put and get of objects ----------------------------------------------------------------------


@case
async def get_returns_what_put_stored(store: ObjectStore) -> None:
    """A get returns all 256 byte values unchanged."""
    await store.put(KEY, bytes(range(256)))

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == bytes(range(256))


@case
async def empty_object_is_an_object(store: ObjectStore) -> None:
    """An empty object can be read and appears in listings."""
    await store.put(KEY, b"")

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b""
    assert [info[:2] async for info in store.list("")] == [(KEY, 0)]


@case
async def large_object_is_returned_unchanged(store: ObjectStore) -> None:
    """Seven megabytes of random bytes, more than any buffer holds, are returned unchanged."""
    data = os.urandom(7_000_001)
    await store.put(KEY, data)

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == data
    assert await store.get_range(KEY, 3_000_000, 6_000_001) == data[3_000_000:6_000_001]


@case
async def buffer_of_a_write_can_be_reused(store: ObjectStore) -> None:
    """The caller may reuse its buffer after put, create or replace has returned."""
    buffer = bytearray(b"..content..")
    await store.put(KEY, memoryview(buffer)[2:-2])
    etag = await store.create(OTHER, memoryview(buffer)[2:-2])
    await store.replace(OTHER, memoryview(buffer)[2:-1], etag)
    buffer[:] = bytes(len(buffer))

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"content"
    assert (await store.get(OTHER, PACK_BYTES_MAX)).data == b"content."


@case
async def put_replaces_an_object(store: ObjectStore) -> None:
    """A shorter object replaces all bytes of a longer object."""
    await store.put(KEY, b"a longer content")
    await store.put(KEY, b"short")

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"short"


@case
async def error_for_a_missing_object_has_its_key(store: ObjectStore) -> None:
    """A read of a missing object and a read of a range in it raise the same error."""
    for read in (store.get(KEY, PACK_BYTES_MAX), store.get_range(KEY, 0, 1)):
        with pytest.raises(ObjectMissingError) as caught:
            await read
        assert caught.value.key == KEY


@case
async def prefix_of_a_key_is_no_object(store: ObjectStore) -> None:
    """If a key exists, its prefixes and extensions are not objects."""
    await store.put(KEY, b"content")

    for key in ("pack", "pack/3f", f"{KEY}/more"):
        with pytest.raises(ObjectMissingError):
            await store.get(ObjectKey(key), PACK_BYTES_MAX)


@case
async def object_larger_than_the_limit_of_a_get_is_refused(store: ObjectStore) -> None:
    """A get above its size limit raises an error with the key, the size, the limit and the etag."""
    await store.put(KEY, bytes(1000))

    assert (await store.get(KEY, 1000)).data == bytes(1000)
    with pytest.raises(ObjectTooLargeError) as caught:
        await store.get(KEY, 999)

    assert (caught.value.key, caught.value.size_bytes, caught.value.max_bytes) == (KEY, 1000, 999)
    await store.replace(KEY, b"small", caught.value.etag)
    assert (await store.get(KEY, 999)).data == b"small"


# --- reads of byte ranges ------------------------------------------------------------------------


@case
async def ranges_are_exact(store: ObjectStore) -> None:
    """A range may be the first byte, the last byte, a part, or the complete object."""
    await store.put(KEY, b"0123456789")

    assert await store.get_range(KEY, 0, 1) == b"0"
    assert await store.get_range(KEY, 9, 10) == b"9"
    assert await store.get_range(KEY, 3, 7) == b"3456"
    assert await store.get_range(KEY, 0, 10) == b"0123456789"


@case
async def range_beyond_the_end_raises_format_error(store: ObjectStore) -> None:
    """A range that ends beyond the end of an object raises FormatError with the key."""
    await store.put(KEY, b"0123456789")
    await store.put(OTHER, b"")

    for key, start, stop in ((KEY, 9, 11), (KEY, 10, 11), (KEY, 100, 200), (OTHER, 0, 1)):
        with pytest.raises(FormatError) as caught:
            await store.get_range(key, start, stop)
        assert caught.value.key == key


@case
async def invalid_range_raises_format_error(store: ObjectStore) -> None:
    """An invalid range raises FormatError, because it may come from a corrupt row."""
    await store.put(KEY, b"0123456789")

    for start, stop in ((5, 5), (7, 3), (-1, 3), (0, RANGE_BYTES_MAX + 1), (1 << 62, 1 << 63)):
        with pytest.raises(FormatError) as caught:
            await store.get_range(KEY, start, stop)
        assert caught.value.key == KEY


# --- conditional writes of objects ---------------------------------------------------------------


@case
async def second_create_of_a_key_is_refused(store: ObjectStore) -> None:
    """A create of an existing key changes nothing, and is refused even with the same bytes."""
    await store.create(KEY, b"first")

    for data in (b"second", b"first"):
        with pytest.raises(PreconditionError):
            await store.create(KEY, data)
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"first"


@case
async def deleted_key_can_be_created_again(store: ObjectStore) -> None:
    """After a key was deleted and created again, a get returns the content of the second create."""
    await store.create(KEY, b"first")
    await store.delete([KEY])
    await store.create(KEY, b"second")

    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"second"


@case
async def replace_requires_the_current_etag(store: ObjectStore) -> None:
    """An etag is valid for one replacement, whichever request returned it."""
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
async def replace_of_a_deleted_object_is_refused(store: ObjectStore) -> None:
    """A replacement of a deleted object is refused and creates no object."""
    etag = await store.create(KEY, b"1")
    await store.delete([KEY])

    with pytest.raises(PreconditionError):
        await store.replace(KEY, b"2", etag)
    assert await keys_of(store) == []


@case
async def one_of_many_concurrent_creates_succeeds(store: ObjectStore) -> None:
    """Of many concurrent creates, exactly one succeeds, and only its bytes are stored."""
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
async def concurrent_replaces_lose_no_update(store: ObjectStore) -> None:
    """Four tasks increment a counter five times each, and the result is twenty.

    Each task appends its number, because ``replace`` requires bytes that no other caller sends.
    """
    await store.create(KEY, b"0")

    async def count(task: int, times: int) -> None:
        while times:
            present = await store.get(KEY, PACK_BYTES_MAX)
            value = int(present.data.split()[0]) + 1
            try:
                await store.replace(KEY, b"%d %d" % (value, task), present.etag)
            except PreconditionError:
                continue
            times -= 1

    async with trio.open_nursery() as nursery:
        for task in range(4):
            nursery.start_soon(count, task, 5)

    assert (await store.get(KEY, PACK_BYTES_MAX)).data.split()[0] == b"20"


@case
async def probe_accepts_the_store(store: ObjectStore) -> None:
    """The probe reports that the store honours conditional writes, and leaves no object behind."""
    assert await probe(store, "c0ffee")

    assert await keys_of(store) == []


@case
async def concurrent_reader_gets_one_complete_object(store: ObjectStore) -> None:
    """A reader that runs concurrently with two writers always gets a complete object."""
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


# --- deletes of objects --------------------------------------------------------------------------


@case
async def delete_of_missing_keys_is_no_error(store: ObjectStore) -> None:
    """A delete of missing keys or of no keys raises no error and keeps other objects."""
    await put_all(store, [KEY, OTHER])

    await store.delete([])
    await store.delete([KEY, ObjectKey("missing"), ObjectKey("miss/ing")])
    await store.delete([KEY])

    assert await keys_of(store) == [OTHER]


# --- listings of objects -------------------------------------------------------------------------


@case
async def listing_is_sorted_by_bytes(store: ObjectStore) -> None:
    """Keys are sorted by bytes, even if they differ only in '-', '.', '/' or '0'."""
    keys = ["a/b/c", "a/b-c", "a/b0", "a-b", "a.b/c", "a0", "B", "lease", "image/1-1-a/manifest"]
    await put_all(store, keys)

    assert await keys_of(store) == sorted(keys)


@case
async def listing_accepts_any_prefix(store: ObjectStore) -> None:
    """The prefix of a listing may end in the middle of a name. A listing contains object sizes."""
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
async def listing_begins_after_a_given_key(store: ObjectStore) -> None:
    """A listing may begin after a key that does not exist."""
    await put_all(store, ["a/1", "a/2", "a/3", "b/1"])

    assert await keys_of(store, "a/", after="a/1") == ["a/2", "a/3"]
    assert await keys_of(store, "a/", after="a/2a") == ["a/3"]
    assert await keys_of(store, "", after="a/3") == ["b/1"]
    assert await keys_of(store, "a/", after="b") == []


async def check_pages(store: ObjectStore, count: int) -> None:
    """Put, list and delete *count* objects, which need more than one page."""
    keys = numbered(count)
    await put_all(store, keys)

    assert await keys_of(store, "many/") == keys
    assert await keys_of(store, after=keys[5]) == keys[6:]
    await store.delete([ObjectKey(key) for key in keys])
    assert await keys_of(store) == []


async def listing_of_a_page_and_one_object_is_complete(store: ObjectStore) -> None:
    """A listing that is one object longer than a page is complete.

    Two batches delete the objects.
    """
    await check_pages(store, LIST_PAGE_KEYS + 1)


async def listing_of_three_pages_is_complete(store: ObjectStore) -> None:
    """A listing of three pages is complete; several batches delete the objects."""
    await check_pages(store, 2 * LIST_PAGE_KEYS + 1)


LONG_CASES.append(listing_of_a_page_and_one_object_is_complete)
SLOW_CASES.append(listing_of_three_pages_is_complete)


@case
async def listing_may_be_closed_early(store: ObjectStore) -> None:
    """A caller may close a listing after its first object."""
    await put_all(store, ["a", "b", "c"])
    found = store.list("")

    assert (await found.__anext__()).key == "a"
    await found.aclose()

    assert await keys_of(store) == ["a", "b", "c"]


# --- objects with special keys -------------------------------------------------------------------


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
async def keys_with_special_characters_are_stored(store: ObjectStore) -> None:
    """Special characters in keys survive URLs and the XML of listings and batch deletes."""
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


# --- cancellation, concurrency, clock and URL -----------------------------------------------------


@case
async def cancelled_write_leaves_old_or_new_content(store: ObjectStore) -> None:
    """After a cancelled put, the object has its old or new content and the store is usable."""
    contents = [b"old" * 10_000, b"new" * 1_000_000]
    await store.put(KEY, contents[0])

    async with running(store.put, KEY, contents[1]):
        await trio.lowlevel.checkpoint()

    assert (await store.get(KEY, PACK_BYTES_MAX)).data in contents
    await store.put(OTHER, b"content")
    assert (await store.get(OTHER, PACK_BYTES_MAX)).data == b"content"


@case
async def store_and_objects_have_one_clock(store: ObjectStore) -> None:
    """The store's current time and the times of its objects come from the same clock.

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
            # A local store uses this host's clock, or the clock of a network disk's file server.
        )


@case
async def every_method_can_be_cancelled(store: ObjectStore) -> None:
    """Every method of a store has a schedule point, where a cancelled task stops."""
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
async def thirty_concurrent_requests_succeed(store: ObjectStore) -> None:
    """Thirty concurrent requests succeed although the store has fewer threads."""
    await store.put(KEY, b"0123456789")
    answers: list[bytes | memoryview] = []

    async def read() -> None:
        answers.append(await store.get_range(KEY, 2, 5))

    async with trio.open_nursery() as nursery:
        for _ in range(30):
            nursery.start_soon(read)

    assert answers == [b"234"] * 30


@case
async def url_has_a_scheme_and_error_messages_one_line(store: ObjectStore) -> None:
    """A store's URL has a scheme, and the message about a missing object is a single line."""
    assert ":" in store.url
    with pytest.raises(StoreError) as caught:
        await store.get(KEY, PACK_BYTES_MAX)
    assert "\n" not in caught.value.message
