"""Receiving a response: objects directly into the caller's buffer, texts up to a limit.

Owns: the calls that receive bytes; the return of the connection to urllib3's pool; the maximum time
for the header and the body of a response; the maximum length of a text. A text is a listing, an
error or another response that botocore parses.
Does not know: keys, the expected length of an object.

botocore and urllib3 return each piece of a body as new bytes, and their ``readinto`` copies these
bytes while it holds the interpreter lock. Both wrap an ``http.client`` response, which can receive
into any buffer. The attributes with this response are private; if a version of botocore or urllib3
does not have them, the body is read through botocore.

The timeouts of urllib3 apply to each piece that a socket receives, so a server that sends one byte
at a time could hold a thread forever. Only the stream below ``http.client`` sees every piece.
Source: urllib3 documentation, ``util.Timeout``.
For ``socket.sendall``, the timeout applies to all bytes of the call. So a request is sent in pieces
that a slow network accepts in time, and the number of pieces bounds the time of the request. The
kernel keeps few unsent bytes, so that each accepted piece shows that earlier pieces were sent.
"""

import errno
import http.client
import io
import socket
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
    AWSPreparedRequest,
    AWSResponse,
)
from botocore.parsers import ResponseParserError
from botocore.response import StreamingBody
from typing_extensions import override

from s3fs_meta.limits import (
    STORE_BODY_BYTES_PER_S_MIN,
    STORE_BODY_CHUNK_BYTES,
    STORE_TEXT_BYTES_MAX,
)
from s3fs_meta.objects.contact import note_sent

if TYPE_CHECKING:
    from typing_extensions import Buffer

    _Connection = AWSHTTPConnection
else:
    _Connection = object

# A piece takes 4 s at the minimum speed. Half the size would cost 5% more CPU with https.
# While the event loop is busy, pieces of half the size would also reduce the speed by a quarter.
_PIECE_BYTES: Final = 4 * STORE_BODY_BYTES_PER_S_MIN
# Maximum number of unsent bytes in the kernel. The socket accepts more bytes when half are sent.
_UNSENT_BYTES: Final = 2 * _PIECE_BYTES


class TimedReader(io.RawIOBase):
    """The bytes that a socket receives for one response, until a time limit expires."""

    def __init__(self, source: io.RawIOBase, connection: socket.socket) -> None:
        """Limit the time for the header: one timeout to the first byte, one for the other bytes."""
        self._source, self._connection = source, connection
        self._timeout_s = connection.gettimeout() or 0.0
        self._limit_s = 2 * self._timeout_s
        self._end_s = time.monotonic() + self._limit_s

    def allow(self, size_bytes: int) -> None:
        """Limit the time for a body of *size_bytes*: one timeout plus the time at minimum speed."""
        self._limit_s = self._timeout_s + size_bytes / STORE_BODY_BYTES_PER_S_MIN
        self._end_s = time.monotonic() + self._limit_s

    @override
    def readable(self) -> bool:
        """Return True, because io.BufferedReader refuses a stream that is not readable."""
        return True

    @override
    def readinto(self, buffer: "Buffer", /) -> int | None:
        """Receive bytes into *buffer*. The call blocks.

        Raises:
            TimeoutError: no byte arrived in time, or the time limit of the response has expired.
        """
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(
                errno.ETIMEDOUT, f"the response was incomplete after {self._limit_s:.3g} s"
            )
        if left_s >= self._timeout_s:
            return self._source.readinto(buffer)
        self._connection.settimeout(left_s)
        try:
            return self._source.readinto(buffer)
        finally:
            self._connection.settimeout(self._timeout_s)

    @override
    def close(self) -> None:
        """Close the stream; the connection stays open."""
        super().close()
        self._source.close()


class TimedResponse(http.client.HTTPResponse):
    """A response whose header and body must arrive in time."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.reader = TimedReader(self.fp.detach(), sock)
        self.fp = io.BufferedReader(self.reader)


class _Timed(_Connection):
    """The time limits of a connection, for http and https."""

    response_class = TimedResponse  # type: ignore[assignment]  # the stubs expect a subclass
    send_timeout_s = 0.0
    is_connecting = False

    @override
    def connect(self) -> None:
        self.is_connecting = True  # a request to a proxy uses the connect timeout
        super().connect()
        _prepare_sending(self.sock, self.send_timeout_s)
        self.is_connecting = False

    @override
    def send(self, data: Any) -> None:
        if self.sock is not None and not self.is_connecting:
            self.sock.settimeout(self.send_timeout_s)  # urllib3 sets another before each request
        _send_pieces(super().send, data)


class _TimedHttpConnection(_Timed, AWSHTTPConnection):  # type: ignore[misc]  # stubs differ
    """A connection over http with time limits."""


class _TimedHttpsConnection(_Timed, AWSHTTPSConnection):  # type: ignore[misc]  # stubs differ
    """A connection over https with time limits."""


def _prepare_sending(connection: socket.socket, timeout_s: float) -> None:
    """Set the timeout of each piece, and keep few unsent bytes in the kernel.

    Until the first response, urllib3 would use the connect timeout. By default the kernel keeps up
    to 4 MiB of unsent bytes, and accepts the next piece only after it has sent a third of them.
    Source: tcp(7), TCP_NOTSENT_LOWAT; net/core/stream.c, sk_stream_write_space.
    """
    connection.settimeout(timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


def _send_pieces(send: Callable[[Any], None], data: Any) -> None:
    """Send a buffer in pieces, or a file; http.client itself reads a file in pieces."""
    if not isinstance(data, (bytes, memoryview)):
        send(data)
        return
    view = memoryview(data)
    for start in range(0, len(view), _PIECE_BYTES):
        piece = view[start : start + _PIECE_BYTES]
        send(piece)
        note_sent(len(piece))


def _timed_pools(timeout_s: float) -> dict[str, type[Any]]:
    """Return classes of connection pools, by scheme."""

    class HttpConnection(_TimedHttpConnection):
        send_timeout_s = timeout_s

    class HttpsConnection(_TimedHttpsConnection):
        send_timeout_s = timeout_s

    class HttpPool(AWSHTTPConnectionPool):
        ConnectionCls = HttpConnection

    class HttpsPool(AWSHTTPSConnectionPool):
        ConnectionCls = HttpsConnection

    return {"http": HttpPool, "https": HttpsPool}


class ResponseBody:
    """The body of one response; the caller reads it to the end or closes it."""

    def __init__(self, body: StreamingBody) -> None:
        self._body = body
        self._raw: Any = getattr(body, "_raw_stream", None)
        inner = getattr(self._raw, "_fp", None)
        # Read a chunked body through urllib3: it translates errors that are no OSErrors.
        is_direct = isinstance(inner, http.client.HTTPResponse) and not inner.chunked
        self._inner: http.client.HTTPResponse | None = inner if is_direct else None
        self.is_chunked = isinstance(inner, http.client.HTTPResponse) and bool(inner.chunked)
        self._reader: TimedReader | None = getattr(inner, "reader", None)

    @property
    def is_direct(self) -> bool:
        """Return whether ``http.client`` receives the body, without botocore and urllib3."""
        return self._inner is not None

    @property
    def length(self) -> int | None:
        """Return the number of remaining bytes, or None if the header has no length."""
        return None if self._inner is None else self._inner.length

    def allow(self, size_bytes: int) -> None:
        """Start the time limit for receiving *size_bytes* bytes."""
        if self._reader is not None:
            self._reader.allow(size_bytes)

    def receive(self, buffer: memoryview) -> int:
        """Receive bytes into *buffer*; return the number, which is 0 only at the end. Blocks.

        Raises:
            OSError, BotoCoreError: the connection failed or timed out.
        """
        if self._inner is None:
            return self._body.readinto(buffer)  # type: ignore[arg-type]
        return self._inner.readinto(buffer)

    def close(self) -> None:
        """Return the connection to its pool if the body was read to its end; else close it."""
        if self._inner is not None and self._inner.isclosed():
            self._raw.release_conn()
        self._body.close()


class HttpSession(Protocol):
    """The methods of botocore's URLLib3Session that an endpoint calls."""

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        """Send a request; return the response."""
        ...

    def close(self) -> None:
        """Close idle connections."""
        ...


class BoundedSession:
    """An HTTP session with limits: the time of each response, and the size of a text.

    botocore reads texts completely before it parses them. A faulty server, or another server at the
    same address, could send a text that fills the memory.
    """

    def __init__(
        self,
        inner: HttpSession,
        send_timeout_s: float,
        text_bytes_max: int = STORE_TEXT_BYTES_MAX,
    ) -> None:
        """Limit each response, and limit the time for each sent piece to *send_timeout_s*."""
        self._inner, self._text_bytes_max = inner, text_bytes_max
        pools = getattr(inner, "_pool_classes_by_scheme", None)
        if isinstance(pools, dict):  # a version of botocore may lack this private attribute
            pools.update(_timed_pools(send_timeout_s))

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        """Send a request and receive its response; the caller receives the body of an object.

        Raises:
            ResponseParserError: the text is too long; the connection was closed.
            BotoCoreError: the request failed.
        """
        streamed = AWSPreparedRequest(
            request.method, request.url, request.headers, request.body, stream_output=True
        )
        response = self._inner.send(streamed)
        if request.stream_output and response.status_code < HTTPStatus.MULTIPLE_CHOICES:
            return response
        headers: Any = response.headers
        text = _Received(_read_text(response, self._text_bytes_max))
        return AWSResponse(response.url, response.status_code, headers, text)

    def close(self) -> None:
        """Close idle connections."""
        self._inner.close()


class _Received:
    """A received body, which botocore reads through ``stream``."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def stream(self) -> Iterator[bytes]:
        """Return the pieces of the body."""
        return iter(self._pieces)


def _read_text(response: AWSResponse, bytes_max: int) -> list[bytes]:
    unknown: Any = None  # pass no length: the response to a HEAD request has a length, but no body
    body = StreamingBody(response.raw, unknown)
    source = ResponseBody(body)
    length = bytes_max if source.length is None else source.length
    source.allow(min(length, bytes_max))
    pieces, received_bytes = [], 0
    while piece := body.read(STORE_BODY_CHUNK_BYTES):
        pieces.append(piece)
        received_bytes += len(piece)
        if received_bytes > bytes_max:
            body.close()
            raise ResponseParserError(f"the text of the response has more than {bytes_max} bytes")
    return pieces
