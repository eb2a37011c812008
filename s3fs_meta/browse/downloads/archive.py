"""The entries of an archive, and a buffer that combines small pieces.

Owns: the bounds for all kinds of archives. Does not know: formats (``tar_stream``, ``zip_stream``).
Keeps: every walk terminates, even if damaged metadata makes a directory contain itself.
"""

import os
from collections.abc import AsyncGenerator
from typing import Final

import trio

from s3fs_meta.browse.limits import BROWSE_PATH_BYTES_MAX, BROWSE_PIECE_BYTES
from s3fs_meta.errors import PastUnavailableError
from s3fs_meta.export import from_snapshot
from s3fs_meta.export.copier import require_type
from s3fs_meta.export.from_snapshot import Step
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.model import Attributes
from s3fs_meta.mount.http_server import Send

_PAUSE: Final = 256  # number of archive entries sent before other requests may run


async def entries(point: OpenPoint, top: Attributes, name: bytes) -> AsyncGenerator[Step, None]:
    """Yield a directory and the entries below it; each path begins with *name*.

    Entries with invalid names are logged and omitted.

    Raises:
        PastUnavailableError: a path has more than BROWSE_PATH_BYTES_MAX bytes, or a directory has
            two names or contains itself.
        MetadataError: the row of an inode is unreadable, so the archive would lack the entry.
    """

    def omit(path: bytes, why: str) -> None:
        if why == from_snapshot.REPEATED:
            what = f"the directory {os.fsdecode(path)!r} has two names, or contains itself"
            raise PastUnavailableError(point.volume.link.txg, what)
        from_snapshot.log_omission(path, why)

    first = Step(top, name)
    yield first
    for number, step in enumerate(from_snapshot.walk(point.db, first, omit=omit)):
        if number % _PAUSE == 0:
            await trio.lowlevel.checkpoint()
        if step.left:
            continue
        require_type(step.attributes)
        if len(step.path) > BROWSE_PATH_BYTES_MAX:
            why = f"a path has more than {BROWSE_PATH_BYTES_MAX:,} bytes, too many for an archive"
            raise PastUnavailableError(point.volume.link.txg, why)
        yield step


class Joined:
    """A buffer that combines small pieces of an archive before it sends them."""

    def __init__(self, put: Send) -> None:
        self._put = put
        self._pieces = bytearray()

    async def put(self, data: bytes | bytearray) -> None:
        """Add a piece; send all collected pieces if they are large enough together."""
        self._pieces += data
        if len(self._pieces) >= BROWSE_PIECE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send the pieces that the buffer still contains."""
        data = bytes(self._pieces)
        self._pieces.clear()
        if data:
            await self._put(data)
