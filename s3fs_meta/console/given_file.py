"""Reading a file that the user names, such as a passphrase file.

Owns: reading a bounded number of bytes in a bounded time. Does not know: the content of the file.
The file may be a pipe, for example the output of a command: ``--passphrase-file <(pass show key)``.
A named pipe that no process writes to, or a device without an end, must not block the command.
"""

import errno
import os
import select
import stat
import time
from pathlib import Path
from typing import Final, NamedTuple


class PipeLimits(NamedTuple):
    """The times that a reader waits for a pipe."""

    writer_s_max: float = 10.0  # until a process has opened a named pipe for writing
    # after that, until the writer has written all; it may ask the user for a password first
    bytes_s_max: float = 300.0


_LIMITS: Final = PipeLimits()


def read(
    path: Path, bytes_max: int, *, is_line: bool = False, limits: PipeLimits = _LIMITS
) -> bytes:
    """Return the beginning of a file: at most *bytes_max* bytes. The call blocks.

    Args:
        path: a file, a pipe or a device.
        bytes_max: the maximum number of bytes.
        is_line: True if the caller needs only the first line; then more bytes may be returned, but
            no more are waited for.
        limits: the times after which an incomplete pipe is an error.

    Raises:
        OSError: the file cannot be read, or the writer of the pipe does not end in time.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        os.set_blocking(fd, not is_pipe)
        read_part = _PipeReader(limits).read if is_pipe else os.read
        found = b""
        while len(found) < bytes_max and not (is_line and b"\n" in found):
            part = read_part(fd, bytes_max - len(found))
            if not part:
                break
            found += part
        return found
    finally:
        os.close(fd)


class _PipeReader:
    """Reads the parts of one pipe; the time limits apply to all parts together."""

    def __init__(self, limits: PipeLimits) -> None:
        self._limits = limits
        self._writer_end_s = time.monotonic() + limits.writer_s_max
        self._end_s = self._writer_end_s + limits.bytes_s_max

    def read(self, fd: int, bytes_max: int) -> bytes:
        """Wait for the next bytes of the pipe; return b"" when all its writers have closed it.

        Source: fifo(7), poll(2), pipe(7): until the first process opens a named pipe for writing,
        the pipe reports no event, and a read that does not block returns no bytes.
        """
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        for end_s in (self._writer_end_s, self._end_s):
            events = poller.poll(max(end_s - time.monotonic(), 0.0) * 1000)
            try:
                part = os.read(fd, bytes_max)
            except BlockingIOError:  # the pipe has a writer, which has written nothing yet
                continue
            if not part and not events:
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    "no process has opened the pipe for writing in"
                    f" {self._limits.writer_s_max:.0f} s",
                )
            return part
        raise TimeoutError(
            errno.ETIMEDOUT, f"the text in the pipe is incomplete after {sum(self._limits):.0f} s"
        )
