"""Receiving the body of a response: objects directly into the caller's buffer, texts up to a limit.

Owns: the calls that receive bytes, the return of the connection to urllib3's pool, and the maximum
length of a text, which is a listing, an error or another response that botocore parses.
Does not know: keys, the expected length, time limits.

botocore and urllib3 return each piece of a body as new bytes. Their ``readinto`` copies these bytes
while it holds the interpreter lock. The ``http.client`` response that they wrap can receive into
any buffer. Their attributes for this response are private; if a version does not have them, the
body is read through botocore.
"""

import http.client
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Protocol

from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.parsers import ResponseParserError
from botocore.response import StreamingBody

from s3fs_meta.limits import STORE_BODY_CHUNK_BYTES, STORE_TEXT_BYTES_MAX


class ResponseBody:
    """The body of one response, which is read to its end or closed."""

    def __init__(self, body: StreamingBody) -> None:
        self._body = body
        self._raw: Any = getattr(body, "_raw_stream", None)
        inner = getattr(self._raw, "_fp", None)
        # The errors of a chunked body are not OSErrors; urllib3 translates them.
        is_direct = isinstance(inner, http.client.HTTPResponse) and not inner.chunked
        self._inner: http.client.HTTPResponse | None = inner if is_direct else None

    @property
    def is_direct(self) -> bool:
        """Return whether bytes are received without botocore and urllib3."""
        return self._inner is not None

    def receive(self, buffer: memoryview) -> int:
        """Receive bytes into *buffer*; return their number, 0 only at the end. The call blocks.

        Raises:
            OSError, BotoCoreError: the connection failed or timed out.
        """
        if self._inner is None:
            return self._body.readinto(buffer)  # type: ignore[arg-type]
        return self._inner.readinto(buffer)

    def close(self) -> None:
        """Return the connection to its pool if the whole body was read; else close it."""
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
    """An HTTP session that receives at most STORE_TEXT_BYTES_MAX bytes of a text.

    botocore reads texts completely before it parses them. A server with a fault, or another server
    at the same address, could send a text that fills the memory.
    """

    def __init__(self, inner: HttpSession) -> None:
        self._inner = inner

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        """Send a request; receive its response unless it is an object, which the caller receives.

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
        text = _Received(_read_text(response))
        return AWSResponse(response.url, response.status_code, headers, text)

    def close(self) -> None:
        """Close idle connections."""
        self._inner.close()


class _Received:
    """A body that was received; botocore calls ``stream`` to read it."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def stream(self) -> Iterator[bytes]:
        """Return the pieces of the body."""
        return iter(self._pieces)


def _read_text(response: AWSResponse) -> list[bytes]:
    unknown: Any = None  # the response to a HEAD request has a length, but no body
    body = StreamingBody(response.raw, unknown)
    pieces, received_bytes = [], 0
    while piece := body.read(STORE_BODY_CHUNK_BYTES):
        pieces.append(piece)
        received_bytes += len(piece)
        if received_bytes > STORE_TEXT_BYTES_MAX:
            body.close()
            raise ResponseParserError(
                f"the text of the response has more than {STORE_TEXT_BYTES_MAX} bytes"
            )
    return pieces
