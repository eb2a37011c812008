"""Tests of the HTTP server, which must survive slow, broken and hostile clients."""

import socket
import struct

import pytest
import trio
import trio.testing

from s3fs_meta.errors import SettingsError, StoreUnavailableError
from s3fs_meta.limits import KIB, MIB
from s3fs_meta.mount.http_server import Bounds, HttpRequest, HttpServer, Reply, Send
from s3fs_meta.mount.limits import HTTP_DRAIN_BYTES_MAX
from s3fs_meta.options.listen_address import Address
from tests.polling import WAIT_S_MAX, until

BOUNDS = Bounds(connections=4, request_bytes=8 * KIB, request_s=2.0 * WAIT_S_MAX, send_s=60.0)
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def broken(put: Send) -> None:
    """Send a part of a download that then fails because of a bug."""
    await put(b"half")
    raise OSError("the bucket is lost")


async def lost(put: Send) -> None:
    """Send a part of a download that then fails in a task because of the bucket."""
    async with trio.open_nursery():
        await put(b"half")
        raise StoreUnavailableError("pack/1", 3, 10.0, "no route to host")


FAILING = {b"/broken": broken, b"/lost": lost}


class Site:
    """A site with two failing downloads, two replies of 64 MiB, and a delayed reply."""

    def __init__(self) -> None:
        self.go = trio.Event()
        self.ended = trio.Event()
        self.why = ""  # The exception that ended the last download.
        self.waiting = 0  # The number of requests for the delayed reply.

    async def answer(self, request: HttpRequest) -> Reply:
        """Return the reply to a request."""

        async def large(put: Send) -> None:
            try:
                for _ in range(64):
                    await put(bytes(MIB))
            except BaseException as exc:
                self.why = type(exc).__name__
                self.ended.set()
                raise

        if request.target in FAILING:
            return Reply(200, stream=FAILING[request.target])
        if request.target == b"/large":
            return Reply(200, stream=large, length=64 * MIB)
        if request.target == b"/one-piece":
            return Reply(200, bytes(64 * MIB))
        if request.target == b"/wait":
            self.waiting += 1
            await self.go.wait()
        return Reply(200, b"page", headers={"x-headers": str(len(request.headers))})


class Running:
    """A running HTTP server with its site."""

    def __init__(self, port: int, site: Site) -> None:
        self.port = port
        self.site = site

    async def connect(self) -> trio.SocketStream:
        """Return a connection that has sent nothing."""
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def ask(self, request: bytes) -> bytes:
        """Send a request; return the complete reply."""
        async with await self.connect() as stream:
            await stream.send_all(request)
            return await rest_of(stream)


async def rest_of(stream: trio.SocketStream) -> bytes:
    """Return all data that the server still sends on a connection."""
    return b"".join([bytes(data) async for data in stream])


@pytest.fixture
async def running(nursery: trio.Nursery) -> Running:
    """Return a running HTTP server."""
    server, site = HttpServer(BOUNDS, {"x-always": "yes"}), Site()
    await server.listen(Address("127.0.0.1", 0))
    nursery.start_soon(server.serve, site.answer)
    return Running(server.address.port, site)


async def test_http_server_refuses_a_port_that_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = Address("127.0.0.1", other.getsockname()[1])
        with pytest.raises(SettingsError, match="cannot listen on option="):
            await HttpServer(BOUNDS, {}).listen(address, "option=")


async def test_http_reply_has_correct_headers_and_closes_the_connection(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await running.ask(GET)
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nx-always: yes\r\n" in reply
    assert b"\r\nconnection: close\r\n" in reply.lower()
    assert reply.endswith(b"\r\n\r\npage")
    assert (await running.ask(GET.replace(b"GET", b"HEAD"))).endswith(b"\r\n\r\n")
    assert not caplog.records  # A reply to HEAD must not log an error.


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /" + b"x" * BOUNDS.request_bytes, b"431"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * BOUNDS.request_bytes, b"431"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"A: x\r\n" * BOUNDS.request_bytes, b"431"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01" + bytes(300), b"400"),  # The client starts a TLS connection.
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # This request lacks a Host header.
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\n\r\n", b"501"),
    ],
)
async def test_malformed_http_request_is_answered_with_an_error_status(
    running: Running, request_: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await running.ask(request_)).split(b" ")[1] == status
    assert (await running.ask(GET)).endswith(b"page")
    assert not caplog.records


async def test_http_client_that_sends_a_long_body_receives_the_reply(running: Running) -> None:
    """The server reads the complete request, because a reset would lose the reply."""
    body = bytes(HTTP_DRAIN_BYTES_MAX // 2)
    request = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert (await running.ask(request + body)).endswith(b"page")
    # The server answers only the first of 20 pipelined requests.
    assert (await running.ask(GET * 20)).count(b"HTTP/1.1 200") == 1


async def test_http_client_that_sends_an_endless_body_is_disconnected(running: Running) -> None:
    async with await running.connect() as stream:
        await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n")
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(bytes(64 * MIB))  # This exceeds the kernel's socket buffers.


async def test_half_closed_http_connection_receives_its_reply(running: Running) -> None:
    async with await running.connect() as stream:
        await stream.send_all(GET)
        await stream.send_eof()
        assert (await rest_of(stream)).endswith(b"page")
    async with await running.connect() as stream:
        await stream.send_all(GET[:10])
        await stream.send_eof()
        assert (await rest_of(stream)).startswith(b"HTTP/1.1 400")
    async with await running.connect() as stream:
        await stream.send_eof()
        assert await rest_of(stream) == b""


async def test_slow_http_request_gets_status_408(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    """A slow request is answered with status 408. A connection without a request is closed."""
    async with await running.connect() as silent, await running.connect() as slow:
        began_s = trio.current_time()
        await slow.send_all(GET[:10])
        assert (await rest_of(slow)).startswith(b"HTTP/1.1 408")
        assert await rest_of(silent) == b""
        assert trio.current_time() - began_s < BOUNDS.request_s + 5


async def test_http_client_that_reads_no_reply_is_disconnected(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    async with await running.connect() as stream:
        began_s = trio.current_time()
        await stream.send_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await running.site.ended.wait()
        assert running.site.why == "TooSlowError"
        assert trio.current_time() - began_s < BOUNDS.send_s + 5
        assert len(await rest_of_broken(stream)) < 64 * MIB


async def test_slow_http_client_receives_a_large_piece_completely(
    running: Running, autojump_clock: trio.testing.MockClock
) -> None:
    """A client that always reads is not disconnected, however large one piece of a reply is."""
    async with await running.connect() as stream:
        began_s, count = trio.current_time(), 0
        await stream.send_all(b"GET /one-piece HTTP/1.1\r\nHost: x\r\n\r\n")
        while data := await stream.receive_some(MIB):
            count += len(data)
            await trio.sleep(BOUNDS.send_s / 4)
        assert count > 64 * MIB
        assert trio.current_time() - began_s > 4 * BOUNDS.send_s


async def rest_of_broken(stream: trio.SocketStream) -> bytes:
    """Return the data that arrives on a connection before the server resets it."""
    found = bytearray()
    try:
        async for data in stream:
            found += data
    except trio.BrokenResourceError:
        pass
    return bytes(found)


async def test_download_ends_when_its_client_disconnects(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async with await running.connect() as stream:
        await stream.send_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await stream.receive_some()
        linger = struct.pack("ii", 1, 0)  # With SO_LINGER 0, close resets the connection.
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    with trio.fail_after(WAIT_S_MAX):
        await running.site.ended.wait()
    assert running.site.why == "BrokenResourceError"
    assert not caplog.records


@pytest.mark.parametrize(
    ("path", "why", "is_bug"),
    [("broken", "the bucket is lost", True), ("lost", "no route to host", False)],
)
async def test_failed_download_is_sent_without_its_last_chunk(
    running: Running, caplog: pytest.LogCaptureFixture, path: str, why: str, is_bug: bool
) -> None:
    reply = await running.ask(b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n" % path.encode())
    assert reply.endswith(b"4\r\nhalf\r\n")  # The last chunk of the body is missing.
    (record,) = caplog.records
    assert record.getMessage().startswith("a reply could not be completed: ")
    assert why in record.getMessage()
    assert bool(record.exc_info) is is_bug  # Only a bug is logged with a traceback.


async def test_idle_http_clients_do_not_block_other_clients(running: Running) -> None:
    """If all connections are in use, the oldest connection without a request is closed."""
    streams = [await running.connect() for _ in range(BOUNDS.connections)]
    assert (await running.ask(GET)).endswith(b"page")
    with trio.fail_after(WAIT_S_MAX):
        assert await rest_of(streams[0]) == b""
    streams += [await running.connect() for _ in range(400)]
    assert (await running.ask(GET)).endswith(b"page")
    for stream in streams:
        await stream.aclose()


async def test_http_requests_above_the_connection_limit_get_status_503(running: Running) -> None:
    wait = GET.replace(b"/ ", b"/wait ", 1)
    streams = [await running.connect() for _ in range(BOUNDS.connections)]
    for stream in streams:
        await stream.send_all(wait)
    await until(lambda: running.site.waiting == BOUNDS.connections)
    assert (await running.ask(GET)).startswith(b"HTTP/1.1 503")
    assert (await running.ask(GET.replace(b"GET", b"HEAD"))).startswith(b"HTTP/1.1 503")
    running.site.go.set()
    for stream in streams:
        assert (await rest_of(stream)).endswith(b"page")
        await stream.aclose()
    assert (await running.ask(GET)).endswith(b"page")
