"""HTTP on loopback for one user: reads requests within bounds, and sends replies.

Owns: connections and their bounds, the headers that every reply has. Does not know: pages, tokens.
Keeps: BROWSE_CONNECTIONS_MAX connections, one request of BROWSE_REQUEST_BYTES_MAX for each. A client
that neither sends nor reads is disconnected. An error of one request never ends the server.
Only GET and HEAD; a body in a request is never read.
Tasks: one ``serve``, below it one per connection.
Source: RFC 9110, RFC 9112; https://www.w3.org/TR/CSP3.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import h11
import trio

from s3fs_meta.errors import SettingsError
from s3fs_meta.limits import (
    BROWSE_CONNECTIONS_MAX,
    BROWSE_REQUEST_BYTES_MAX,
    BROWSE_REQUEST_S_MAX,
    BROWSE_SEND_S_MAX,
    KIB,
)
from s3fs_meta.model import Address

_log = logging.getLogger(__name__)

HTML: Final = "text/html; charset=utf-8"
OK, SEE_OTHER, BAD, FORBIDDEN, NOT_FOUND, METHOD = 200, 303, 400, 403, 404, 405
MISDIRECTED, BUG, STORE, NOT_NOW = 421, 500, 502, 503
_RECEIVE_BYTES: Final = 16 * KIB

_POLICY: Final = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';"
    " frame-ancestors 'none'; base-uri 'none'"
)
# A browser must not keep pages about files, nor treat their content as a page.
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "connection": "close",
}

Send = Callable[[bytes], Awaitable[None]]
Stream = Callable[[Send], Awaitable[None]]


class Request(NamedTuple):
    """A request that was read completely."""

    method: str
    target: bytes
    headers: Mapping[bytes, bytes]  # by lower-case name; the last one of several


class Reply(NamedTuple):
    """The reply to one request."""

    status: int
    content: bytes = b""
    content_type: str = HTML
    headers: Mapping[str, str] = {}
    # Sends the content in pieces instead of ``content``; None: there is only that.
    stream: Stream | None = None
    length: int | None = None  # number of bytes that ``stream`` sends, if it is known


Answer = Callable[[Request], Awaitable[Reply]]


class HttpServer:
    """Answers requests on one address of loopback."""

    def __init__(self) -> None:
        self.address = Address("", 0)  # where it listens
        self._listener: trio.SocketListener | None = None
        self._connections = 0

    async def listen(self, address: Address) -> None:
        """Listen on an address; clients wait until ``serve`` answers them.

        Raises:
            SettingsError: the address is not on loopback, or cannot be used.
        """
        if not address.is_loopback:
            raise SettingsError(
                f"the pages are for this host only: {address} is no loopback address;"
                " use ssh -L to see them from another host"
            )
        try:
            (found,) = await trio.open_tcp_listeners(address.port, host=address.host)
        except OSError as exc:
            why = exc.strerror or str(exc)
            raise SettingsError(f"cannot listen on {address}: {why}; choose another") from exc
        self._listener = found
        self.address = Address(address.host, found.socket.getsockname()[1])

    def close(self) -> None:
        """End listening. Schedule point: never."""
        if self._listener is not None:
            self._listener.socket.close()

    async def serve(self, answer: Answer) -> None:
        """Answer requests until cancelled, then stop listening. Call ``listen`` first."""
        assert self._listener is not None, "it listens"

        async def converse(stream: trio.SocketStream) -> None:
            await self._converse(stream, answer)

        await trio.serve_listeners(converse, [self._listener])

    async def _converse(self, stream: trio.SocketStream, answer: Answer) -> None:
        """Answer the request of one connection, and close the connection."""
        try:
            async with stream:
                if self._connections >= BROWSE_CONNECTIONS_MAX:
                    return
                self._connections += 1
                try:
                    await _answer(stream, answer)
                finally:
                    self._connections -= 1
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            return  # the client disconnected, or does not read
        except Exception:  # noqa: BLE001  # the client sees an incomplete reply; others are served
            _log.exception("a reply could not be completed")


async def _answer(stream: trio.SocketStream, answer: Answer) -> None:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=BROWSE_REQUEST_BYTES_MAX)
    try:
        with trio.fail_after(BROWSE_REQUEST_S_MAX):
            request = await _next_request(connection, stream)
    except h11.RemoteProtocolError as exc:
        reply = Reply(exc.error_status_hint or BAD, f"{exc}\n".encode(), "text/plain")
        await _send(connection, stream, reply, has_body=True)
        return
    if request.method not in {"GET", "HEAD"}:
        reply = Reply(METHOD, b"only GET and HEAD\n", "text/plain", {"allow": "GET, HEAD"})
    else:
        reply = await answer(request)
    await _send(connection, stream, reply, has_body=request.method != "HEAD")


async def _next_request(connection: h11.Connection, stream: trio.SocketStream) -> Request:
    while True:  # bounded by BROWSE_REQUEST_BYTES_MAX and BROWSE_REQUEST_S_MAX
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return Request(event.method.decode(), event.target, dict(event.headers))
        if event is not h11.NEED_DATA:
            raise trio.BrokenResourceError  # the client closed the connection
        connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))


async def _send(
    connection: h11.Connection, stream: trio.SocketStream, reply: Reply, *, has_body: bool
) -> None:
    headers = {**_HEADERS, "content-type": reply.content_type, **reply.headers}
    length = len(reply.content) if reply.stream is None else reply.length
    if length is not None:
        headers["content-length"] = str(length)

    async def put(event: h11.Event) -> None:
        data = connection.send(event)
        if data:
            with trio.fail_after(BROWSE_SEND_S_MAX):
                await stream.send_all(data)

    async def put_content(data: bytes) -> None:
        await put(h11.Data(data=data))

    await put(h11.Response(status_code=reply.status, headers=list(headers.items())))
    if has_body and reply.stream is not None:
        await reply.stream(put_content)
    elif has_body and reply.content:
        await put_content(reply.content)
    await put(h11.EndOfMessage())
