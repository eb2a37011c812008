"""Standard output as a stream that writes all text or fails; its errors name standard output.

Owns: the stream, and the class of its errors.
Does not know: the text, closed streams (``standard_streams``).
Keeps: a closed pipe raises BrokenPipeError, as without this stream; the subclass distinguishes it
from standard error and from sockets.
"""

import codecs
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Final, TextIO, cast

from typing_extensions import override

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


_HANDLER: Final = "s3fs-meta-output"  # name of the codec error handler ``_encoded``


class OutputError(OSError):
    """Standard output cannot be written: its disk is full, or the caller has closed it."""


class ClosedOutputError(BrokenPipeError):
    """The reader of standard output, such as head, has closed the pipe."""


class _OutputFile(io.FileIO):
    """The unbuffered file below standard output."""

    def __init__(self, before: TextIO) -> None:
        """Open the file of a stream; *before* stays open, because it owns the descriptor."""
        super().__init__(before.fileno(), "w", closefd=False)
        self._before = before

    @override
    def write(self, data: "ReadableBuffer", /) -> int:
        try:
            written = cast("int | None", super().write(data))
        except BrokenPipeError as exc:
            raise ClosedOutputError(exc.errno, exc.strerror) from exc
        except OSError as exc:
            # If the caller closed standard output, ``standard_streams`` opened it only for reading.
            why = "it is closed" if exc.errno == errno.EBADF else str(exc.strerror)
            raise OutputError(exc.errno, why) from exc
        if written is None:  # the descriptor is non-blocking, and the pipe is full
            raise OutputError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return written


def _encoded(exc: UnicodeError) -> tuple[str | bytes, int]:
    """Return the original byte of a path that is not UTF-8, or an escape for another character."""
    assert isinstance(exc, UnicodeEncodeError), "the stream only writes"
    first = UnicodeEncodeError(exc.encoding, exc.object, exc.start, exc.start + 1, exc.reason)
    try:
        return codecs.lookup_error("surrogateescape")(first)
    except UnicodeEncodeError:
        return codecs.lookup_error("backslashreplace")(first)


def install() -> None:
    """Replace standard output by a buffered stream that accepts every text.

    The bytes of a path that is not UTF-8 are written unchanged. A character that the encoding of
    the locale lacks, such as a µ in ASCII, is written as an escape.

    The stream is buffered even if Python runs with -u or PYTHONUNBUFFERED. An unbuffered stream
    ignores a partial write(2), for example to a disk that is almost full. A command could then
    succeed although a part of its result is lost.
    """
    before = sys.stdout
    if isinstance(before, io.TextIOWrapper):
        codecs.register_error(_HANDLER, _encoded)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(_OutputFile(before)),
            encoding=before.encoding,
            errors=_HANDLER,
            line_buffering=before.isatty(),
        )
