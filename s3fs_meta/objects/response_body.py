"""Receiving the body of a response directly into the caller's buffer.

Owns: the calls that receive bytes, and the return of the connection to urllib3's pool.
Does not know: keys, the expected length, time limits.

botocore and urllib3 return each piece of a body as new bytes. Their ``readinto`` copies these bytes
while it holds the interpreter lock. The ``http.client`` response that they wrap can receive into
any buffer. Their attributes for this response are private; if a version does not have them, the
body is read through botocore.
"""

import http.client
from typing import Any

from botocore.response import StreamingBody


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
