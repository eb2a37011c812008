"""A past directory as a tar archive that is created while it is sent.

Owns: the records of the archive. Does not know: HTTP, how content is read (``source``).
Keeps: memory does not grow with the tree. At most BROWSE_LINKS_MAX hard-linked files are
remembered; other hard-linked files are stored once for each name.
An incomplete archive has no end mark, so tar(1) reports an error.
Source: pax(1) of POSIX.1-2001; names that are not UTF-8 are binary records.
"""

import os
import stat
import tarfile
from contextlib import aclosing
from typing import Final

from s3fs_meta.browse.downloads import archive
from s3fs_meta.browse.downloads.archive import Joined
from s3fs_meta.browse.limits import BROWSE_LINKS_MAX
from s3fs_meta.browse.sources import source
from s3fs_meta.export.from_snapshot import Step
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.meta.tables import symlinks
from s3fs_meta.model import Attributes, Ino
from s3fs_meta.mount.http_server import Send

CONTENT_TYPE: Final = "application/x-tar"
_BLOCK: Final = tarfile.BLOCKSIZE
_NS: Final = 10**9
_TYPES: Final = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
}  # a tar archive cannot contain sockets


class TarStream:
    """Sends one directory tree as a tar archive."""

    def __init__(self, point: OpenPoint, put: Send, *, links_max: int = BROWSE_LINKS_MAX) -> None:
        """Prepare to send an archive.

        Args:
            point: the point in time.
            put: sends bytes to the browser.
            links_max: maximum number of hard-linked files to remember.
        """
        self._point = point
        self._links_max = links_max
        self._out = Joined(put)
        # For each hard-linked file, its first path and the number of its names that are not sent
        # yet.
        self._firsts: dict[Ino, tuple[bytes, int]] = {}

    async def send(self, top: Attributes, name: bytes) -> None:
        """Send a directory and all entries below it.

        Args:
            top: the directory.
            name: the name of the directory in the archive.

        Raises:
            PastUnavailableError: content of a file is lost; the archive has no end mark.
            StoreError: the bucket cannot be reached.
        """
        async with aclosing(archive.entries(self._point, top, name)) as steps:
            async for step in steps:
                await self._add(step)
        await self._out.put(bytes(2 * _BLOCK))
        await self._out.flush()

    async def _add(self, step: Step) -> None:
        attributes = step.attributes
        kind = _TYPES.get(stat.S_IFMT(attributes.mode))
        if kind is None:
            return
        record = _record_of(step, kind)
        first = None if kind == tarfile.DIRTYPE else self._first_path(step)
        if first is not None:
            record.type, record.linkname = tarfile.LNKTYPE, os.fsdecode(first)
        elif kind == tarfile.SYMTYPE:
            record.linkname = os.fsdecode(symlinks.target(self._point.db, attributes.ino))
        elif kind == tarfile.REGTYPE:
            record.size = attributes.size_bytes
        await self._out.put(record.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if record.type == tarfile.REGTYPE:
            await source.send(self._point, attributes, self._out.put)
            await self._out.put(bytes(-record.size % _BLOCK))

    def _first_path(self, step: Step) -> bytes | None:
        """Return the path under which the archive already contains a file, or None."""
        ino, count = step.attributes.ino, step.attributes.nlink
        known = self._firsts.get(ino)
        if known is not None:
            path, left = known
            if left > 1:
                self._firsts[ino] = path, left - 1
            else:
                del self._firsts[ino]
            return path
        if count > 1 and len(self._firsts) < self._links_max:
            self._firsts[ino] = step.path, count - 1
        return None


def _record_of(step: Step, kind: bytes) -> tarfile.TarInfo:
    attributes = step.attributes
    record = tarfile.TarInfo(os.fsdecode(step.path))
    record.type = kind
    record.mode = stat.S_IMODE(attributes.mode)
    record.uid, record.gid = attributes.uid, attributes.gid
    record.mtime = attributes.mtime_ns // _NS
    if attributes.mtime_ns % _NS:
        record.pax_headers = {"mtime": _decimal(attributes.mtime_ns)}
    if kind in {tarfile.CHRTYPE, tarfile.BLKTYPE}:
        record.devmajor, record.devminor = os.major(attributes.rdev), os.minor(attributes.rdev)
    return record


def _decimal(time_ns: int) -> str:
    """Return a time in seconds, in the format of pax(1) records."""
    seconds, rest = divmod(abs(time_ns), _NS)
    return f"{'-' if time_ns < 0 else ''}{seconds}.{rest:09d}"
