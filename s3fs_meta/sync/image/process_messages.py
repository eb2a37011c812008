"""Messages between the daemon and the process that restores a database for it.

Owns: the framing of messages, and the form of errors in them. Does not know: their content.
Keeps: a message is a JSON object followed by bytes, both of limited length. No message can make the
receiver run code or import modules.
Tasks: any task may send; one task receives.
"""

import json
import struct
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import trio

from s3fs_meta import bucket_errors
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.errors import S3fsError
from s3fs_meta.limits import RESTORE_MESSAGE_BYTES_MAX

_LENGTHS: Final = struct.Struct(">II")
_RECEIVED_BYTES: Final = 1 << 18
_TRACE_CHARS: Final = 10_000  # maximum number of characters in a traceback; its end is kept
_PLAIN: Final = (str, int, float, type(None))

assert issubclass(bucket_errors.BrokenChainError, S3fsError), "both processes know these errors"


class Message(NamedTuple):
    """One message: its fields, and the bytes that follow them."""

    fields: dict[str, Any]
    body: bytes


class Connection:
    """One end of the connection between the daemon and the restoring process."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._lock = trio.Lock()
        self._received = bytearray()

    async def send(self, fields: Mapping[str, Any], body: bytes | memoryview = b"") -> None:
        """Send a message.

        Raises:
            trio.BrokenResourceError: the other process has exited.
        """
        text = json.dumps(fields).encode()
        assert len(text) <= RESTORE_MESSAGE_BYTES_MAX, "the message must not exceed the limit"
        async with self._lock:
            await self._stream.send_all(_LENGTHS.pack(len(text), len(body)) + text)
            if body:
                await self._stream.send_all(body)

    async def receive(self) -> Message | None:
        """Return the next message, or None at the end of the connection.

        A message that is longer than any valid message is treated as the end of the connection.
        """
        start = await self._bytes(_LENGTHS.size)
        if start is None:
            return None
        text_bytes, body_bytes = _LENGTHS.unpack(start)
        if text_bytes > RESTORE_MESSAGE_BYTES_MAX or body_bytes > ENCODED_BYTES_MAX:
            return None
        text, body = await self._bytes(text_bytes), await self._bytes(body_bytes)
        if text is None or body is None:
            return None
        return Message(json.loads(text), body)

    async def _bytes(self, count: int) -> bytes | None:
        while len(self._received) < count:
            try:
                piece = await self._stream.receive_some(_RECEIVED_BYTES)
            except trio.BrokenResourceError:
                return None
            if not piece:
                return None
            self._received += piece
        found = bytes(self._received[:count])
        del self._received[:count]
        return found


def fields_of_error(exc: Exception) -> dict[str, Any]:
    """Return the fields of a message that describes an error."""
    if isinstance(exc, S3fsError):
        fields = {name: value for name, value in vars(exc).items() if isinstance(value, _PLAIN)}
        return {"error": type(exc).__name__, "fields": fields}
    if isinstance(exc, OSError) and exc.errno is not None:
        path = exc.filename if isinstance(exc.filename, str) else None
        return {"error": "OSError", "fields": [exc.errno, exc.strerror, path]}
    return {"error": "", "fields": "".join(traceback.format_exception(exc))[-_TRACE_CHARS:]}


def error_of(fields: Mapping[str, Any]) -> Exception:
    """Return the error in a message, with the class, message and attributes of the original."""
    name, values = fields["error"], fields["fields"]
    if name == "OSError":
        code, text, path = values
        return OSError(code, text, path) if path is not None else OSError(code, text)
    kind = next((one for one in _kinds(S3fsError) if one.__name__ == name), None)
    if kind is None:
        return RuntimeError(f"the restoring process failed: {values}")
    # Do not call ``__init__``, which would build the message again; ``__new__`` sets ``args``.
    made = kind.__new__(kind, values["message"])
    vars(made).update(values)
    return made


def _kinds(kind: type[S3fsError]) -> Iterator[type[S3fsError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
