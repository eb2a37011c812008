"""A directory of the past as a tar archive, made while it is sent.

Owns: the records of the archive. Does not know: HTTP, how content is read (``source``).
Keeps: memory does not grow with the tree, except for the names of files with several hard links.
An archive that cannot be completed has no end, so tar(1) reports it.
Source: pax(1) of POSIX.1-2001; names that are not UTF-8 are binary records of it.
"""

import os
import stat
import tarfile
from typing import Final

from s3fs_meta.browse import source
from s3fs_meta.browse.source import Send
from s3fs_meta.export import from_snapshot
from s3fs_meta.export.from_snapshot import Step
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.meta.tables import symlinks
from s3fs_meta.model import Attributes, Ino

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
}  # an archive cannot have a socket


class TarStream:
    """Sends one tree."""

    def __init__(self, point: OpenPoint, put: Send) -> None:
        self._point = point
        self._put = put
        self._firsts: dict[Ino, bytes] = {}  # first path of each file with several names

    async def send(self, top: Attributes, name: bytes) -> None:
        """Send a directory and everything below it.

        Args:
            top: the directory.
            name: its name in the archive.

        Raises:
            PastUnavailableError: content of a file is lost; the archive has no end.
            StoreError: the bucket cannot be reached.
        """
        step = Step(top, name)
        await self._add(step)
        for below in from_snapshot.walk(self._point.db, step):
            if not below.left:
                await self._add(below)
        await self._put(bytes(2 * _BLOCK))

    async def _add(self, step: Step) -> None:
        attributes = step.attributes
        kind = _TYPES.get(stat.S_IFMT(attributes.mode))
        if kind is None:
            return
        record = _record_of(step, kind)
        first = self._firsts.get(attributes.ino)
        if first is not None:
            record.type, record.linkname = tarfile.LNKTYPE, os.fsdecode(first)
        elif kind == tarfile.SYMTYPE:
            record.linkname = os.fsdecode(symlinks.target(self._point.db, attributes.ino))
        elif kind == tarfile.REGTYPE:
            record.size = attributes.size_bytes
        if attributes.nlink > 1 and kind != tarfile.DIRTYPE:
            self._firsts.setdefault(attributes.ino, step.path)
        await self._put(record.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if record.type == tarfile.REGTYPE:
            await source.send(self._point, attributes, self._put)
            await self._put(bytes(-record.size % _BLOCK))


def _record_of(step: Step, kind: bytes) -> tarfile.TarInfo:
    attributes = step.attributes
    record = tarfile.TarInfo(os.fsdecode(step.path))
    record.type = kind
    record.mode = stat.S_IMODE(attributes.mode)
    record.uid, record.gid = attributes.uid, attributes.gid
    seconds, rest = divmod(attributes.mtime_ns, _NS)
    record.mtime = seconds
    if rest:
        record.pax_headers = {"mtime": f"{seconds}.{rest:09d}"}
    if kind in {tarfile.CHRTYPE, tarfile.BLKTYPE}:
        record.devmajor, record.devminor = os.major(attributes.rdev), os.minor(attributes.rdev)
    return record
