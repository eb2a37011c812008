"""An HTTP server for a few clients: one request and one reply per connection.

Owns: connections, their limits, and the reaction to clients that misbehave. Does not know: pages,
and which client may read them.
Keeps: an error in one request never stops the server. Each connection has its own task, so a slow
client delays no other, except by the limits below. The body of a request is never interpreted.
Tasks: one ``serve``, which starts one task per connection.
Source: RFC 9110, RFC 9112.

    the client                                       outcome
    sends nothing for request_s                      closed; browsers connect early
    sends a part of a request, then nothing          408 after request_s
    sends more than request_bytes                    431
    sends data that is not HTTP                      400
    connects while ``connections`` others wait       the connection that waited longest is closed
    sends a request while ``connections`` others     503
    are answered
    sends further requests, or a body                not read; each reply closes its connection
    does not read for send_s                         closed before the end of the reply
"""

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import h11
import trio

from s3fs_meta.console import exits
from s3fs_meta.errors import S3fsError, SettingsError
from s3fs_meta.limits import KIB
from s3fs_meta.mount.limits import HTTP_DRAIN_BYTES_MAX, HTTP_DRAIN_S_MAX
from s3fs_meta.options.listen_address import Address

_log = logging.getLogger(__name__)

PLAIN: Final = "text/plain; charset=utf-8"
OK, ACCEPTED, PARTIAL, SEE_OTHER, BAD, FORBIDDEN = 200, 202, 206, 303, 400, 403
NOT_FOUND, METHOD, SLOW, RANGE = 404, 405, 408, 416
MISDIRECTED, BUG, STORE, NOT_NOW, TIMEOUT = 421, 500, 502, 503, 504
_RECEIVE_BYTES: Final = 16 * KIB
_SEND_BYTES: Final = 64 * KIB

Send = Callable[[bytes], Awaitable[None]]
Stream = Callable[[Send], Awaitable[None]]


class Bounds(NamedTuple):
    """The limits of one HTTP server for its clients."""

    # Maximum number of clients that send a request at a time; as many others may receive a reply.
    connections: int
    request_bytes: int  # maximum size of the request line and all headers
    request_s: float  # maximum time for a client to send a request
    send_s: float  # maximum time for a client to read _SEND_BYTES of a reply


class HttpRequest(NamedTuple):
    """A complete HTTP request from a client."""

    method: str
    target: bytes
    # Header values by lower-case name; values of a repeated header are joined by commas.
    headers: Mapping[bytes, bytes]


class Reply(NamedTuple):
    """The reply to one HTTP request."""

    status: int
    content: bytes = b""
    content_type: str = PLAIN
    headers: Mapping[str, str] = {}
    # Function that sends the content in pieces; None to send ``content``.
    stream: Stream | None = None
    length: int | None = None  # number of bytes that ``stream`` sends; None if unknown
    # Function that returns a stream of the bytes [start, stop) of the content.
    stream_of: Callable[[int, int], Stream] | None = None


Answer = Callable[[HttpRequest], Awaitable[Reply]]

_BUSY: Final = Reply(NOT_NOW, b"too many requests at a time; try again\n")
_SLOW: Final = Reply(SLOW, b"the request was not complete in time\n")


class HttpServer:
    """A server that answers HTTP requests on one address."""

    def __init__(self, bounds: Bounds, headers: Mapping[str, str]) -> None:
        """Create a server that does not listen yet; every reply contains *headers*."""
        self.address = Address("", 0)  # address on which the server listens
        self._bounds = bounds
        self._headers = headers
        self._listener: trio.SocketListener | None = None
        # Connections that the server may close for new ones, oldest first.
        self._waiting: dict[object, trio.CancelScope] = {}
        self._answered = 0  # number of requests that are being answered

    async def listen(self, address: Address, option: str = "") -> None:
        """Listen on an address; clients wait until ``serve`` answers them.

        Args:
            address: the address; port 0 selects any free port.
            option: the option that gave the address, such as ``metrics=``; used in messages.

        Raises:
            SettingsError: the address cannot be used.
        """
        try:
            (found,) = await trio.open_tcp_listeners(address.port, host=address.host)
        except OSError as exc:
            why = exc.strerror or str(exc)
            raise SettingsError(
                f"cannot listen on {option}{address}: {why}; choose another address"
            ) from exc
        self._listener = found
        self.address = Address(address.host, found.socket.getsockname()[1])

    def close(self) -> None:
        """Close the listening socket of the server. Never yields to other tasks."""
        if self._listener is not None:
            self._listener.socket.close()

    async def serve(self, answer: Answer) -> None:
        """Answer requests until cancelled, then stop listening. Call ``listen`` first."""
        assert self._listener is not None, "it listens"

        async def converse(stream: trio.SocketStream) -> None:
            await self._converse(stream, answer)

        await trio.serve_listeners(converse, [self._listener])

    async def _converse(self, stream: trio.SocketStream, answer: Answer) -> None:
        """Answer the request on one connection, then close the connection."""
        exchange = _Exchange(stream, self._bounds, self._headers)
        try:
            async with stream:
                request = None
                with self._evictable():
                    request = await self._accepted(exchange)
                if request is not None:
                    await self._answer(exchange, request, answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            return  # the client disconnected, or does not read the reply
        except Exception as exc:  # noqa: BLE001  # the client sees an incomplete reply
            reasons = list(exits.leaves(exc))
            is_bug = not all(isinstance(one, S3fsError) for one in reasons)
            _log.error(
                "a reply could not be completed: %s", reasons[0], exc_info=exc if is_bug else None
            )

    async def _accepted(self, exchange: "_Exchange") -> HttpRequest | None:
        """Return the request of a connection; None if it was refused or the client sent nothing."""
        found = await exchange.receive()
        if isinstance(found, HttpRequest):
            if self._answered < self._bounds.connections:
                return found
            found = _BUSY
        if found is not None:
            await exchange.send(found)
            await exchange.drain()
        return None

    async def _answer(self, exchange: "_Exchange", request: HttpRequest, answer: Answer) -> None:
        self._answered += 1
        try:
            await exchange.send(await answer(request))
        finally:
            self._answered -= 1
        with self._evictable():
            await exchange.drain()

    @contextmanager
    def _evictable(self) -> Iterator[None]:
        """Run a context that is cancelled if too many newer connections are waiting."""
        if len(self._waiting) >= self._bounds.connections:
            self._waiting.pop(next(iter(self._waiting))).cancel()
        this = object()
        with trio.CancelScope() as scope:
            self._waiting[this] = scope
            try:
                yield
            finally:
                self._waiting.pop(this, None)


class _Exchange:
    """The exchange of a request and a reply on one connection."""

    def __init__(
        self, stream: trio.SocketStream, bounds: Bounds, headers: Mapping[str, str]
    ) -> None:
        self._stream = stream
        self._bounds = bounds
        self._headers = headers
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=bounds.request_bytes)
        self._has_body = True  # False for the reply to a HEAD request

    async def receive(self) -> HttpRequest | Reply | None:
        """Return the request, or the reply to a bad request, or None if the client sent nothing."""
        try:
            with trio.move_on_after(self._bounds.request_s):
                return await self._request()
        except h11.RemoteProtocolError as exc:
            return Reply(exc.error_status_hint or BAD, f"{exc}\n".encode())
        return _SLOW if self._http.trailing_data[0] else None

    async def _request(self) -> HttpRequest | None:
        while True:  # ends after request_bytes bytes or request_s seconds
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._has_body = event.method != b"HEAD"
                headers: dict[bytes, bytes] = {}
                for name, value in event.headers:
                    headers[name] = headers[name] + b"," + value if name in headers else value
                return HttpRequest(event.method.decode(), event.target, headers)
            if event is not h11.NEED_DATA:
                return None  # the client closed the connection
            self._http.receive_data(await self._stream.receive_some(_RECEIVE_BYTES))

    async def send(self, reply: Reply) -> None:
        """Send a reply.

        Raises:
            TooSlowError: the client does not read.
            BrokenResourceError: the client disconnected.
            Exception: the stream of the reply failed; the client notices the incomplete reply.
        """
        headers = {**self._headers, "content-type": reply.content_type, **reply.headers}
        length = len(reply.content) if reply.stream is None else reply.length
        if length is not None:
            headers["content-length"] = str(length)
        headers["connection"] = "close"
        await self._put(h11.Response(status_code=reply.status, headers=list(headers.items())))
        if self._has_body and reply.stream is not None:
            await reply.stream(self._put_content)
        elif self._has_body and reply.content:
            await self._put_content(reply.content)
        await self._put(h11.EndOfMessage())

    async def _put_content(self, data: bytes) -> None:
        await self._put(h11.Data(data=data))

    async def _put(self, event: h11.Event) -> None:
        data = memoryview(self._http.send(event) or b"")
        for start in range(0, len(data), _SEND_BYTES):
            with trio.fail_after(self._bounds.send_s):
                await self._stream.send_all(data[start : start + _SEND_BYTES])

    async def drain(self) -> None:
        """Ignore further data until the client has read the reply and disconnects.

        Closing a socket with unread data resets the connection, and the client may lose the reply.
        Source: RFC 9112, section 9.6.
        """
        await self._stream.send_eof()
        left = HTTP_DRAIN_BYTES_MAX
        with trio.move_on_after(HTTP_DRAIN_S_MAX):
            while left > 0 and (data := await self._stream.receive_some(_RECEIVE_BYTES)):
                left -= len(data)
