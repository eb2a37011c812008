"""The S3 store: invalid and lost responses, listings and multipart uploads."""

import hashlib
import io
import os

import pytest
import trio
from botocore.response import StreamingBody

from s3fs_meta.errors import (
    FormatError,
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
    StoreAccessError,
    StoreUnavailableError,
    TransientStoreError,
    UnexpectedStoreError,
)
from s3fs_meta.limits import (
    DELETE_BATCH_KEYS,
    GIB,
    MIB,
    PACK_BYTES_MAX,
    STORE_ATTEMPTS_MAX,
    STORE_THREADS_MAX,
    TEXT_OBJECT_BYTES_MAX,
)
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.probe import probe
from s3fs_meta.objects.retry import RetryingStore
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_access import S3Place
from tests.contract.store_contract import keys_of
from tests.memory import traced
from tests.objects.s3_double import (
    AT_ONCE,
    BUCKET,
    DELETED,
    KEY,
    POLL_S,
    PUT_DONE,
    Forward,
    Hang,
    Reply,
    S3Double,
    error,
    listing,
)
from tests.polling import until
from tests.servers import S3Server
from tests.tasks import running

# --- threads of the client ------------------------------------------------------------------------


async def test_cancelled_request_does_not_wait_for_the_response(
    double: S3Double, store: S3Store
) -> None:
    """A cancelled request does not delay other requests; its thread ends at the timeout."""
    double.answer(Hang(), PUT_DONE)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.get, KEY, PACK_BYTES_MAX)
            await until(lambda: double.seen)
            scope.cancel()
    await store.put(KEY, b"")

    assert scope.cancelled_caught


async def test_number_of_threads_with_hanging_requests_is_limited(
    double: S3Double, store: S3Store
) -> None:
    double.answer_always(Hang())

    async with trio.open_nursery() as nursery:
        for _ in range(3 * STORE_THREADS_MAX):
            nursery.start_soon(store.get, KEY, PACK_BYTES_MAX)
        await until(lambda: len(double.seen) >= STORE_THREADS_MAX)
        await trio.sleep(5 * POLL_S)  # A request above the limit would arrive now.
        nursery.cancel_scope.cancel()

    assert len(double.seen) == STORE_THREADS_MAX


# --- wrong responses of a server -----------------------------------------------------------------


@pytest.mark.s3
async def test_truncated_response_is_retried(proxy: S3Double, real_store: S3Store) -> None:
    """If a body ends early, the error is transient and the retry returns all bytes."""
    await real_store.put(KEY, bytes(range(100)))
    for request in (real_store.get(KEY, PACK_BYTES_MAX), real_store.get_range(KEY, 20, 80)):
        proxy.answer(Forward(keep_bytes=30))
        with pytest.raises(TransientStoreError, match="30"):
            await request

    proxy.answer(Forward(keep_bytes=30))
    retrying = RetryingStore(real_store, AT_ONCE)
    assert await retrying.get_range(KEY, 20, 80) == bytes(range(20, 80))


@pytest.mark.parametrize(
    ("content_range", "body"),
    [
        ("bytes 0-4/100", b"01234"),  # The body has fewer bytes than requested.
        ("bytes 0-9/100", b"01234"),  # The body has fewer bytes than Content-Range.
        ("bytes 5-14/100", b"0123456789"),  # This is not the requested byte range.
        ("", b"0123456789"),  # Some servers ignore ranges and send the complete object.
        ("bytes 0-4/\xb2", b"01234"),  # The Unicode digit \xb2 is not a number.
        (f"bytes 0-4/{'9' * 5000}", b"01234"),  # Python's int refuses so many digits.
    ],
)
async def test_response_with_a_wrong_byte_range_is_a_transient_error(
    double: S3Double, store: S3Store, content_range: str, body: bytes
) -> None:
    """A response with the wrong byte range is refused even if it has the correct length."""
    headers = {"Content-Range": content_range} if content_range else {}
    double.answer(Reply(206, body, headers))

    with pytest.raises(TransientStoreError):
        await store.get_range(KEY, 0, 10)


async def test_read_range_beyond_the_end_of_an_object_is_reported_as_damage(
    double: S3Double, store: S3Store
) -> None:
    """A byte range beyond the end of an object is damage, so the request is not retried."""
    double.answer(Reply(206, b"01234", {"Content-Range": "bytes 0-4/5"}))

    with pytest.raises(FormatError, match="ends at byte 10, but the object has only 5 bytes"):
        await store.get_range(KEY, 0, 10)


async def test_object_without_an_etag_can_be_read_but_not_replaced(
    double: S3Double, store: S3Store
) -> None:
    """An object without an ETag is not replaced because a server may ignore an empty condition."""
    double.answer(Reply(200, b"content"))

    content, etag = await store.get(KEY, PACK_BYTES_MAX)

    assert (content, etag) == (b"content", "")
    with pytest.raises(UnexpectedStoreError, match="no ETag"):
        await store.replace(KEY, b"other", etag)
    assert [seen.method for seen in double.seen] == ["GET"]


async def test_response_to_a_write_without_an_etag_is_an_error(
    double: S3Double, store: S3Store
) -> None:
    double.answer(Reply(200))

    with pytest.raises(UnexpectedStoreError, match="lacks the field 'ETag'"):
        await store.create(KEY, b"content")


async def test_object_above_the_size_limit_is_not_read(double: S3Double, store: S3Store) -> None:
    """If an object exceeds the caller's size limit, its body is not downloaded."""
    double.answer(Reply(200, b"s3fs", {"ETag": '"1"'}, declared_bytes=3 * GIB))

    with traced() as peak, pytest.raises(ObjectTooLargeError, match=f"{3 * GIB}"):
        await store.get(KEY, TEXT_OBJECT_BYTES_MAX)

    assert peak() < 64 * MIB  # The memory limit includes the memory for importing boto3.


def test_response_body_larger_than_expected_is_not_read_into_memory() -> None:
    """The client stops reading a body one byte after the expected end."""
    store = S3Store(BUCKET, place=S3Place())
    body = io.BytesIO(bytes(64 * MIB))

    with (
        traced() as peak,
        pytest.raises(TransientStoreError, match="longer than the expected 10 bytes"),
    ):
        store.read_body(KEY, StreamingBody(body, 64 * MIB), memoryview(bytearray(10)))

    assert peak() < 4 * MIB


def test_response_body_shorter_than_expected_is_refused() -> None:
    store = S3Store(BUCKET, place=S3Place())

    with pytest.raises(TransientStoreError, match="is 9 bytes instead of 10"):
        store.read_body(KEY, StreamingBody(io.BytesIO(bytes(9)), 9), memoryview(bytearray(10)))


def test_response_that_arrives_too_slowly_is_abandoned() -> None:
    """A response that takes too long is abandoned, so that it does not block a thread."""
    # The time limit of the body expires before the first byte arrives.
    store = S3Store(BUCKET, place=S3Place(read_timeout_s=-60))

    with pytest.raises(TransientStoreError, match="took too long"):
        store.read_body(KEY, StreamingBody(io.BytesIO(bytes(MIB)), MIB), memoryview(bytearray(MIB)))


@pytest.mark.s3
async def test_body_that_is_damaged_during_an_upload_is_sent_again(
    proxy: S3Double, real_store: S3Store, s3_server: S3Server
) -> None:
    """The server refuses a body whose hash differs from the hash in its signature."""
    if s3_server.make == "moto":
        pytest.skip("moto does not verify signatures")
    proxy.answer(Forward(flip_sent=True))

    await RetryingStore(real_store, AT_ONCE).put(KEY, b"content")

    assert [seen.method for seen in proxy.seen] == ["PUT", "PUT"]
    assert (await real_store.get(KEY, PACK_BYTES_MAX)).data == b"content"


@pytest.mark.parametrize(
    "refusal",
    [
        error(400, "InvalidRequest", Message="Content-MD5 OR x-amz-checksum- is required"),
        error(400, "MissingContentMD5"),
    ],
)
async def test_content_md5_is_sent_if_a_bucket_with_object_lock_requires_it(
    double: S3Double, store: S3Store, refusal: Reply
) -> None:
    """The refused upload is repeated with the header; later uploads have it from the start."""
    double.answer(refusal, PUT_DONE, PUT_DONE)

    await store.put(KEY, b"content")
    await store.create(KEY, b"content")

    hashes = [seen.headers.get("content-md5") for seen in double.seen]
    assert hashes == [None, "mgNkuembtIDdJeHwKEyFVQ==", "mgNkuembtIDdJeHwKEyFVQ=="]


async def test_request_refused_for_a_different_reason_is_not_retried_with_content_md5(
    double: S3Double, store: S3Store
) -> None:
    """The error code InvalidRequest has many reasons; only its message names Content-MD5."""
    double.answer(error(400, "InvalidRequest", Message="the key is too long"))

    with pytest.raises(UnexpectedStoreError):
        await store.put(KEY, b"content")

    assert len(double.seen) == 1


@pytest.mark.s3
async def test_corrupt_s3_response_of_the_correct_length_is_not_detected(
    proxy: S3Double, real_store: S3Store
) -> None:
    """The S3 client does not verify content, so without TLS only the codec detects a change."""
    await real_store.put(KEY, b"content")
    assert proxy.seen[0].body == b"content"
    proxy.answer(Forward(flip=True), Forward(flip=True))

    assert (await real_store.get(KEY, PACK_BYTES_MAX)).data == b"bontent"
    assert await real_store.get_range(KEY, 0, 3) == b"bon"


# --- conditional writes ----------------------------------------------------------------------------


async def test_conditions_of_conditional_writes_are_sent_as_headers(
    double: S3Double, store: S3Store
) -> None:
    """Create sends If-None-Match: *, and replace sends If-Match with the tag of the object."""
    double.answer_always(PUT_DONE)

    etag = await store.create(KEY, b"content")
    await store.replace(KEY, b"content", etag)

    assert double.seen[0].headers["if-none-match"] == "*"
    assert double.seen[1].headers["if-match"] == '"1"'


@pytest.mark.s3
async def test_lost_response_to_a_create_is_recognised(
    proxy: S3Double, real_store: S3Store
) -> None:
    """A retried create that is refused but finds its own content in the object has succeeded."""
    proxy.answer(Forward(lose=True))

    etag = await RetryingStore(real_store, AT_ONCE).create(KEY, b"nonce 1")

    assert await real_store.get(KEY, PACK_BYTES_MAX) == (b"nonce 1", etag)
    assert [seen.method for seen in proxy.seen] == ["PUT", "PUT", "GET", "GET"]


@pytest.mark.s3
async def test_lost_response_to_a_replace_is_recognised(
    proxy: S3Double, real_store: S3Store
) -> None:
    """If the response to a replace is lost, the retry returns the ETag of the new object."""
    store = RetryingStore(real_store, AT_ONCE)
    etag = await store.create(KEY, b"nonce 1")
    proxy.answer(Forward(lose=True))

    etag = await store.replace(KEY, b"nonce 2", etag)

    await store.replace(KEY, b"nonce 3", etag)
    assert (await store.get(KEY, PACK_BYTES_MAX)).data == b"nonce 3"


@pytest.mark.s3
async def test_write_by_another_host_before_a_retry_is_detected(
    proxy: S3Double, real_store: S3Store
) -> None:
    """If a retried write finds the object of another host, the write fails."""
    await real_store.create(KEY, b"theirs")
    proxy.answer(Forward(lose=True))

    with pytest.raises(PreconditionError):
        await RetryingStore(real_store, AT_ONCE).create(KEY, b"ours")


async def test_s3_store_that_ignores_conditional_writes_is_recognised(
    double: S3Double, store: S3Store
) -> None:
    """The probe fails if a second create of a key succeeds or is answered with NotImplemented."""
    double.answer(PUT_DONE, PUT_DONE, DELETED)
    assert not await probe(store, "c0ffee")

    double.answer(error(501, "NotImplemented"), DELETED)
    assert not await probe(store, "c0ffee")


# --- outages of the server ------------------------------------------------------------------------


async def test_long_outage_does_not_reduce_the_number_of_later_attempts(
    double: S3Double, store: S3Store
) -> None:
    """After hundreds of failures, a request still makes its maximum number of attempts."""
    retrying = RetryingStore(store, AT_ONCE)
    double.answer_always(error(503, "SlowDown"))
    for _ in range(25):
        with pytest.raises(StoreUnavailableError) as caught:
            await retrying.put(KEY, b"content")
        assert caught.value.attempts == STORE_ATTEMPTS_MAX
    assert len(double.seen) == 25 * STORE_ATTEMPTS_MAX

    double.answer(*[error(503, "SlowDown")] * (STORE_ATTEMPTS_MAX - 1), PUT_DONE)
    await retrying.put(KEY, b"content")


# --- listings of objects --------------------------------------------------------------------------


async def test_duplicate_key_in_a_listing_is_returned_once(
    double: S3Double, store: S3Store
) -> None:
    """A key that is repeated within a page or on the next page is returned once."""
    double.answer(listing(["a", "b", "b", "c"], token="t"), listing(["b", "c", "c", "d"]))

    assert await keys_of(store) == ["a", "b", "c", "d"]
    assert double.seen[1].query["continuation-token"] == "t"


async def test_unordered_listing_is_an_error(double: S3Double, store: S3Store) -> None:
    """An unordered listing raises an error, because a reader could miss objects."""
    double.answer(listing(["b", "c"], token="t"), listing(["a", "d"]))

    with pytest.raises(UnexpectedStoreError, match="not sorted at 'a'"):
        await keys_of(store)


async def test_listing_ends_with_an_error_if_the_server_repeats_a_page(
    double: S3Double, store: S3Store
) -> None:
    """If a server ignores the token of the next page, the listing must still end."""
    double.answer(*[listing(["a", "b"], token="t")] * 5)

    with pytest.raises(UnexpectedStoreError, match="sent a page of the listing twice"):
        await keys_of(store)
    assert len(double.seen) == 2


async def test_empty_page_does_not_end_a_listing(double: S3Double, store: S3Store) -> None:
    double.answer(listing([], token="t"), listing([], token="u"), listing(["a"]))

    assert await keys_of(store) == ["a"]


async def test_listing_ends_with_an_error_if_the_server_repeats_empty_pages(
    double: S3Double, store: S3Store
) -> None:
    double.answer(*[listing([], token="t")] * 5)

    with pytest.raises(UnexpectedStoreError, match="sent a page of the listing twice"):
        await keys_of(store)
    assert len(double.seen) == 2


async def test_key_outside_the_requested_prefix_ends_a_listing_with_an_error(
    double: S3Double,
) -> None:
    """If a server ignores the prefix, keys of another filesystem must not be listed."""
    double.answer(listing(["lease", "prefix/lease"]))

    with pytest.raises(UnexpectedStoreError, match="'lease', which has another prefix"):
        await keys_of(S3Store(BUCKET, "prefix", S3Place(double.url)))


@pytest.mark.parametrize("size", ["-1", "9" * 20])
async def test_listing_with_an_impossible_object_size_is_an_error(
    double: S3Double, store: S3Store, size: str
) -> None:
    items = f"<Contents><Key>a</Key><Size>{size}</Size></Contents><IsTruncated>false</IsTruncated>"
    double.answer(Reply(200, f"<ListBucketResult>{items}</ListBucketResult>".encode()))

    with pytest.raises(UnexpectedStoreError, match=f"an impossible size for 'a': {size}"):
        await keys_of(store)


@pytest.mark.parametrize("date", ["yesterday", f"Mon, 01 Jan 2024 00:00:00 +{'9' * 16}"])
async def test_time_of_the_store_is_unknown_if_a_response_has_an_invalid_date(
    double: S3Double, store: S3Store, date: str
) -> None:
    page = listing([])
    double.answer(page._replace(headers={**page.headers, "Date": date}))

    assert await store.now_ns() is None


async def test_listing_resumes_after_the_last_key(double: S3Double, store: S3Store) -> None:
    """If a page fails, a new listing starts after the last key because the token may expire."""
    double.answer(listing(["a", "b"], token="t"), error(503, "SlowDown"), listing(["c"]))

    assert await keys_of(RetryingStore(store, AT_ONCE)) == ["a", "b", "c"]
    assert double.seen[2].query["start-after"] == "b"
    assert "continuation-token" not in double.seen[2].query


async def test_error_of_a_refused_listing_names_the_prefix(
    double: S3Double, store: S3Store
) -> None:
    """The error about a refused listing contains the prefix, unless the prefix is empty."""
    double.answer(error(403, "AccessDenied"), error(403, "AccessDenied"))

    for prefix, name in (("", "the list of objects"), ("pack/", r"the list of objects pack/\*")):
        with pytest.raises(StoreAccessError, match=f"refused {name}: AccessDenied"):
            await keys_of(store, prefix)


async def test_folder_object_made_by_a_web_console_is_ignored(double: S3Double) -> None:
    """Listings omit the empty object that a web console creates for a folder."""
    double.answer(listing(["prefix/", "prefix/lease"]))

    assert await keys_of(S3Store(BUCKET, "prefix", S3Place(double.url))) == ["lease"]


@pytest.mark.s3
async def test_stores_with_different_prefixes_are_separate(proxy: S3Double) -> None:
    """Stores with different prefixes share no objects, even if one prefix begins with another."""
    near, far = (S3Store(BUCKET, prefix, S3Place(proxy.url)) for prefix in ("two/ab", "two/a"))
    await near.put(KEY, b"near")

    assert await keys_of(far) == []
    with pytest.raises(ObjectMissingError):
        await far.get(KEY, PACK_BYTES_MAX)
    await far.delete([KEY])
    assert await keys_of(near) == [KEY]


# --- deletes of several objects -------------------------------------------------------------------


async def test_batches_of_deletes_have_a_checksum(double: S3Double, store: S3Store) -> None:
    """One request deletes up to 1,000 keys, with the MD5 header that older servers require."""
    double.answer_always(DELETED)

    await store.delete([ObjectKey(f"a/{number}") for number in range(DELETE_BATCH_KEYS + 1)])

    assert [seen.body.count(b"<Key>") for seen in double.seen] == [DELETE_BATCH_KEYS, 1]
    assert all("content-md5" in seen.headers for seen in double.seen)


# --- transfer of large objects --------------------------------------------------------------------


@pytest.fixture
def parting(proxy: S3Double, request: pytest.FixtureRequest) -> S3Store:
    """Return a store that uploads in parts of 5 MiB, which is the minimum size in S3."""
    place = S3Place(proxy.url)
    return S3Store(BUCKET, request.node.name, place, multipart_bytes=5 << 20)


@pytest.mark.s3
async def test_large_object_is_uploaded_in_parts(proxy: S3Double, parting: S3Store) -> None:
    data = os.urandom(11 << 20)

    await parting.put(KEY, data)

    assert (await parting.get(KEY, PACK_BYTES_MAX)).data == data
    parts = [seen for seen in proxy.seen if "partNumber" in seen.query]
    assert [len(seen.body) for seen in parts] == [5 << 20, 5 << 20, 1 << 20]
    assert [seen.headers["x-amz-content-sha256"] for seen in parts] == [
        hashlib.sha256(seen.body).hexdigest() for seen in parts
    ]


@pytest.mark.s3
async def test_failed_multipart_upload_is_aborted(proxy: S3Double, parting: S3Store) -> None:
    """If one part fails, the upload is aborted and creates no object."""
    proxy.answer(Forward(), Forward(), error(503, "SlowDown"))

    with pytest.raises(TransientStoreError):
        await parting.put(KEY, bytes(11 << 20))

    assert proxy.seen[-1].method == "DELETE"
    assert "uploadId" in proxy.seen[-1].query
    with pytest.raises(ObjectMissingError):
        await parting.get(KEY, PACK_BYTES_MAX)


@pytest.mark.s3
async def test_cancelled_multipart_upload_is_aborted(proxy: S3Double, parting: S3Store) -> None:
    proxy.answer(Forward(), Hang())

    async with running(parting.put, KEY, bytes(11 << 20)):
        await until(lambda: len(proxy.seen) >= 2)

    assert proxy.seen[-1].method == "DELETE"


@pytest.mark.parametrize("body", [b"", b"<CompleteMultipartUploadResult/>"])
async def test_multipart_upload_without_an_etag_is_repeated(double: S3Double, body: bytes) -> None:
    """S3 sends the status 200 before it creates the object, so a response must have an ETag."""
    begun = Reply(200, b"<R><UploadId>1</UploadId></R>")
    ended = Reply(200, b'<R><ETag>"1"</ETag></R>')
    double.answer(begun, PUT_DONE, PUT_DONE, Reply(200, body), Reply(204))
    double.answer(begun, PUT_DONE, PUT_DONE, ended)
    parting = S3Store(BUCKET, place=S3Place(double.url), multipart_bytes=5 * MIB)

    await RetryingStore(parting, AT_ONCE).put(KEY, bytes(6 * MIB))

    methods = ["POST", "PUT", "PUT", "POST"]
    assert [seen.method for seen in double.seen] == [*methods, "DELETE", *methods]
