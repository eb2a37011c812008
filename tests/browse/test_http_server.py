"""The server on loopback: addresses, and requests beyond the bounds."""

import socket

import pytest
import trio

from s3fs_meta.browse.http_server import HttpServer, Reply, Request, Send
from s3fs_meta.errors import SettingsError
from s3fs_meta.limits import BROWSE_CONNECTIONS_MAX, BROWSE_REQUEST_BYTES_MAX
from s3fs_meta.model import Address


async def answer(request: Request) -> Reply:  # noqa: RUF029 - as one that waits
    """Return a small page; /broken is a download that fails in the middle."""

    async def broken(put: Send) -> None:
        await put(b"half")
        raise OSError("the bucket is lost")

    if request.target == b"/broken":
        return Reply(200, stream=broken)
    return Reply(200, b"page")


@pytest.fixture
async def port(nursery: trio.Nursery) -> int:
    """Return the port of a running server."""
    server = HttpServer()
    await server.listen(Address("127.0.0.1", 0))
    nursery.start_soon(server.serve, answer)
    return server.address.port


async def ask(port: int, request: bytes) -> bytes:
    """Return the complete reply to a request."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request)
        return b"".join([data async for data in stream])


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
async def test_address_beyond_loopback_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match="for this host only"):
        await HttpServer().listen(Address(host, 0))


async def test_port_in_use_is_refused() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(SettingsError, match="cannot listen on"),
    ):
        await HttpServer().listen(Address("127.0.0.1", other.getsockname()[1]))


async def test_request_beyond_the_bound_is_refused(port: int) -> None:
    long = b"GET /" + b"x" * BROWSE_REQUEST_BYTES_MAX
    assert (await ask(port, long)).startswith(b"HTTP/1.1 431")
    assert (await ask(port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")
    assert (await ask(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"page")


async def test_failed_download_is_incomplete(port: int, caplog: pytest.LogCaptureFixture) -> None:
    reply = await ask(port, b"GET /broken HTTP/1.1\r\nHost: x\r\n\r\n")
    assert reply.endswith(b"4\r\nhalf\r\n")  # without the last chunk
    assert "could not be completed" in caplog.text


async def test_further_connections_are_closed(port: int) -> None:
    streams = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(BROWSE_CONNECTIONS_MAX)]
    try:
        await trio.testing.wait_all_tasks_blocked(0.01)
        further = await trio.open_tcp_stream("127.0.0.1", port)
        async with further:
            assert await further.receive_some() == b""
    finally:
        for stream in streams:
            await stream.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert (await ask(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")).endswith(b"page")
