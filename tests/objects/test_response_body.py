"""Response bodies: they are received directly into the caller's buffer."""

import io
import socket
from typing import TYPE_CHECKING

import pytest
import trio
from botocore.response import StreamingBody

from s3fs_meta.errors import (
    ObjectMissingError,
    ObjectTooLargeError,
    S3fsError,
    TransientStoreError,
)
from s3fs_meta.limits import MIB, STORE_TEXT_BYTES_MAX
from s3fs_meta.objects.contact import reporting_sent
from s3fs_meta.objects.response_body import ResponseBody, TimedReader
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_access import S3ClientHolder, S3Place
from tests.memory import traced
from tests.objects.s3_double import (
    BUCKET,
    KEY,
    PUT_DONE,
    Drip,
    Reply,
    S3Double,
    error,
    listing,
    s3_double,
)
from tests.polling import WAIT_S_MAX
from tests.servers import Certificate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def holder(double: S3Double) -> "Iterator[S3ClientHolder]":
    """Yield a client of the server with programmed responses."""
    made = S3ClientHolder(S3Place(endpoint_url=double.url))
    yield made
    made.close()


def test_response_body_is_received_without_another_copy_in_memory(
    double: S3Double, holder: S3ClientHolder
) -> None:
    """A response body is received without a copy in urllib3 or botocore."""
    double.answer(Reply(200, bytes(range(256)) * (MIB // 256)))
    answer = holder.client().get_object(Bucket=BUCKET, Key=KEY)
    body, buffer = ResponseBody(answer["Body"]), memoryview(bytearray(MIB))

    with traced() as peak:
        count = body.receive(buffer)
    body.close()

    assert body.is_direct
    assert (count, bytes(buffer[:256])) == (MIB, bytes(range(256)))
    assert peak() < MIB // 4


def test_connection_is_used_again_after_a_complete_response_body(
    double: S3Double, holder: S3ClientHolder
) -> None:
    """Two consecutive requests use one connection."""
    for _ in range(2):
        double.answer(Reply(200, b"content"))
        answer = holder.client().get_object(Bucket=BUCKET, Key=KEY)
        body, buffer = ResponseBody(answer["Body"]), memoryview(bytearray(7))
        assert body.receive(buffer) == len(buffer)
        body.close()

    assert double.connections == 1


def test_response_body_that_is_not_from_http_client_is_read_by_botocore() -> None:
    """A body from a source other than http.client is read completely, but not directly."""
    body, buffer = ResponseBody(StreamingBody(io.BytesIO(b"content"), 7)), bytearray(7)

    counts = [body.receive(memoryview(buffer)), body.receive(memoryview(bytearray(1)))]
    body.close()

    assert not body.is_direct
    assert (counts, bytes(buffer)) == ([7, 0], b"content")


@pytest.mark.parametrize("status", [200, 404, 503])
@pytest.mark.parametrize("chunked", [False, True])
async def test_size_of_a_listing_or_an_error_message_is_limited(
    double: S3Double, store: S3Store, status: int, *, chunked: bool
) -> None:
    """A listing or an error message from a server must not fill the memory."""
    size = 8 * STORE_TEXT_BYTES_MAX
    body = b"<ListBucketResult>" + size * b" "
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    kind = {"Transfer-Encoding": "chunked"} if chunked else {}
    double.answer(Reply(status, body, kind))
    with traced() as peak, pytest.raises(S3fsError, match="more than 8388608 bytes"):
        [info async for info in store.list("")]
    assert peak() < 3 * STORE_TEXT_BYTES_MAX

    double.answer(Reply(503, body, kind))
    with traced() as peak, pytest.raises(S3fsError, match="more than 8388608 bytes"):
        await store.get(KEY, MIB)
    assert peak() < 3 * STORE_TEXT_BYTES_MAX


async def test_connection_is_used_again_after_a_listing_or_an_error(
    double: S3Double, store: S3Store
) -> None:
    """After a listing, an error or a response without a body, the connection can be used again."""
    double.answer(listing(["a"]), error(404, "NoSuchKey"), PUT_DONE, listing([]))

    assert [info.key async for info in store.list("")] == ["a"]
    with pytest.raises(ObjectMissingError):
        await store.get(KEY, MIB)
    await store.put(KEY, b"content")
    assert [info async for info in store.list("")] == []

    assert double.connections == 1


async def test_empty_object_is_received(double: S3Double, store: S3Store) -> None:
    """Reading an empty object succeeds, and its connection is used again."""
    double.answer(Reply(200), Reply(200))

    assert [(await store.get(KEY, MIB)).data for _ in range(2)] == [b"", b""]
    assert double.connections == 1


async def test_progress_of_an_upload_is_reported(double: S3Double, store: S3Store) -> None:
    """Progress of a slow upload is reported to writers that wait for cache space."""
    double.answer(PUT_DONE)
    sent = list[int]()
    with reporting_sent(sent.append):
        await store.put(KEY, memoryview(bytes(MIB)))

    _header, *pieces = sent
    assert sum(pieces) == MIB
    assert max(pieces) <= MIB // 4


def _chunked(*chunks: bytes) -> bytes:
    """Return a response without a length, whose body consists of chunks."""
    header = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nTransfer-Encoding: chunked\r\n\r\n'
    return header + b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in chunks)


@pytest.mark.parametrize("is_too_large", [False, True])
async def test_object_in_a_chunked_response_is_read_completely(
    double: S3Double, store: S3Store, is_too_large: bool
) -> None:
    """Some proxies replace the header Content-Length by chunks."""
    content = [b"a" * 100_000, b"b"]
    double.answer(Drip(_chunked(*content, b""), pause_s=0.01))
    if is_too_large:
        with pytest.raises(ObjectTooLargeError):
            await store.get(KEY, 100_000)
    else:
        assert (await store.get(KEY, MIB)).data == b"".join(content)


@pytest.mark.parametrize(
    "begin",
    [
        _chunked(b"part") + b"x",
        _chunked(b"part"),
        b'HTTP/1.0 200 OK\r\nETag: "1"\r\n\r\npart',
        b'HTTP/1.1 200 OK\r\nETag: "1"\r\nConnection: close\r\n\r\npart',
    ],
)
@pytest.mark.parametrize("pause_s", [0.01, None], ids=["time limit", "closed connection"])
async def test_response_with_an_unknown_end_is_not_returned_as_a_complete_object(
    double: S3Double, begin: bytes, pause_s: float | None
) -> None:
    """A part of an object would be reported as damage; the request is repeated instead."""
    store = S3Store(BUCKET, place=S3Place(endpoint_url=double.url, read_timeout_s=0.5))
    double.answer(Drip(begin, pause_s))
    with trio.fail_after(WAIT_S_MAX), pytest.raises(TransientStoreError):
        await store.get(KEY, 1000)


@pytest.mark.parametrize(
    ("header", "is_text"),
    [
        (b"", False),
        (b"X-Slow:", False),
        (b"Content-Length: 9000\r\n\r\n", False),
        (b"Content-Length: 9000\r\n\r\n", True),
    ],
)
async def test_response_that_arrives_byte_by_byte_times_out(
    double: S3Double, header: bytes, *, is_text: bool
) -> None:
    """No pause between bytes exceeds the read timeout, but the total time has a limit."""
    place = S3Place(endpoint_url=double.url, read_timeout_s=0.5)
    store = S3Store(BUCKET, place=place)
    double.answer(Drip(b"HTTP/1.1 200 OK\r\n" + header, pause_s=0.01))

    request = anext(store.list("")) if is_text else store.get(KEY, MIB)
    with trio.fail_after(WAIT_S_MAX), pytest.raises(TransientStoreError):
        await request


async def test_https_response_that_arrives_byte_by_byte_times_out(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))
    with s3_double(certificate=certificate) as double:
        store = S3Store(BUCKET, place=S3Place(double.url, read_timeout_s=0.5))
        double.answer(Drip(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n", pause_s=0.01))

        with trio.fail_after(WAIT_S_MAX), pytest.raises(TransientStoreError):
            await store.get(KEY, MIB)


@pytest.mark.slow
@pytest.mark.parametrize("is_text", [False, True])
async def test_large_response_body_may_arrive_slowly(double: S3Double, *, is_text: bool) -> None:
    """A large body may need more time than the time limit for a header."""
    store = S3Store(BUCKET, place=S3Place(double.url, read_timeout_s=2))
    body = listing([]).body.ljust(MIB)
    header = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    double.answer(Drip(header + body[:-50], pause_s=0.1))

    if is_text:
        assert [info async for info in store.list("")] == []
    else:
        assert (await store.get(KEY, MIB)).data == body


def _receive_slowly(server: socket.socket, reader: TimedReader) -> None:
    """Send and receive one byte at a time, until the time limit expires."""
    while True:
        server.send(b"x")
        reader.readinto(bytearray(1))


def test_time_limit_of_a_body_starts_after_the_header() -> None:
    """The time limit of a header does not include the body, which has its own limit."""
    client, server = socket.socketpair()
    client.settimeout(0.02)
    with client, server, TimedReader(socket.SocketIO(client, "r"), client) as reader:
        with pytest.raises(TimeoutError, match=r"incomplete after 0\.04 s"):
            _receive_slowly(server, reader)
        server.send(b"y")
        reader.allow(MIB)

        assert reader.readinto(bytearray(1)) == 1
        assert client.gettimeout() == 0.02
