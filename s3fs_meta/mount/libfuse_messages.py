"""The messages that libfuse writes to the daemon's log when a mount fails.

Owns: quoting these messages, with advice, in the error of the mount. Does not know: how the mount
failed. libfuse prints the reason of a failure on standard error, but does not return it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from s3fs_meta.errors import UsageError
from s3fs_meta.limits import KIB
from s3fs_meta.state_paths import open_regular

# Messages of libfuse, each with the advice that s3fs-meta adds.
_ADVICE: Final = (
    ("/dev/fuse: Permission denied", "users need access to the device: chmod 666 /dev/fuse"),
    ("exec fusermount3", "install the package fuse3"),
)
_READ_BYTES_MAX: Final = 64 * KIB  # libfuse writes a few lines


@contextlib.contextmanager
def quoting_libfuse(log: Path) -> Iterator[None]:
    """Add libfuse's messages from the daemon's log to the error of a failed mount."""
    before_bytes = log.stat().st_size if log.exists() else 0
    try:
        yield
    except UsageError as exc:
        written = _read(log, before_bytes).decode(errors="replace")
        lines = [line for line in written.splitlines() if line.startswith(("fuse", "mount:"))]
        advice = [what for text, what in _ADVICE if any(text in line for line in lines)]
        raise UsageError("; ".join([exc.message, *lines, *advice])) from exc


def _read(log: Path, start: int) -> bytes:
    """Return the bytes of the log from *start* on, or b"" if the log cannot be read."""
    try:
        with open(open_regular(log), "rb") as file:
            file.seek(start)
            return file.read(_READ_BYTES_MAX)
    except OSError:
        return b""
