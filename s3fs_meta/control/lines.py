"""Reading lines of bounded length from a byte stream."""

import trio

from s3fs_meta.errors import ControlError
from s3fs_meta.limits import CONTROL_MESSAGE_BYTES_MAX, KIB

_RECEIVE_BYTES = 64 * KIB


class LineReader:
    """Reads lines of bounded length from a byte stream."""

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def next_line(self) -> bytes:
        """Return the next line without its newline, or b"" if the peer has closed the connection.

        Raises:
            ControlError: the line is too long, or the stream ends inside it.
            trio.BrokenResourceError: the connection broke.

        Yields to other tasks unless the buffer contains a line. Takes no locks.
        """
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > CONTROL_MESSAGE_BYTES_MAX:
                raise ControlError(
                    "ControlError",
                    "the control message is too long; the limit is"
                    f" {CONTROL_MESSAGE_BYTES_MAX} bytes",
                )
            received = await self._stream.receive_some(_RECEIVE_BYTES)
            if not received:
                if self._buffer:
                    raise ControlError(
                        "ControlError", "the control connection ended in the middle of a message"
                    )
                return b""
            self._buffer += received
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line
