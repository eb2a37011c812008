"""A past directory as a zip archive that is created while it is sent.

Owns: the names and attributes in the archive.
Does not know: HTTP, how content is read (``source``).
Keeps: at most BROWSE_ZIP_ENTRIES_MAX entries, because the list at the end of the archive is built
in memory. No name escapes the extraction directory, not even on Windows. An incomplete
archive has no list, so unzip(1) reports an error.
Source: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT; proginfo/extrafld.txt of
Info-ZIP's zip 3.0.
"""

import re
import stat
import struct
import zipfile
from contextlib import aclosing
from datetime import datetime, timezone
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.browse.downloads import archive
from s3fs_meta.browse.downloads.archive import Joined
from s3fs_meta.browse.limits import BROWSE_PIECE_BYTES, BROWSE_ZIP_ENTRIES_MAX
from s3fs_meta.browse.sources import source
from s3fs_meta.errors import SettingsError
from s3fs_meta.export.from_snapshot import Step
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.meta.tables import symlinks
from s3fs_meta.model import Attributes
from s3fs_meta.mount.http_server import Send

CONTENT_TYPE: Final = "application/zip"
_KINDS: Final = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK})
_UNIX: Final = 3  # value of create_system with which unzip applies the Unix modes of entries
_DIRECTORY: Final = 0x10  # MS-DOS attribute of a directory
_NS: Final = 10**9
_TIME: Final = struct.Struct("<HHBi")  # extra field with the modification time in seconds
_TIME_ID: Final = 0x5455
_TIME_RANGE: Final = range(-(1 << 31), 1 << 31)
_YEARS: Final = range(1980, 2108)  # years that an MS-DOS date can express
# Matches a percent sign that looks like an escape, and separators of paths and drives of Windows.
_ESCAPED: Final = re.compile(r"%(?=[0-9A-Fa-f]{2})|[\\:]")


class _Collected:
    """A file object without seek that collects the output of zipfile."""

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None:
        """Do nothing, because ``take`` returns the collected bytes."""

    def close(self) -> None:
        """Do nothing, because zipfile closes only files that it has opened."""

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


class ZipStream:
    """Sends one directory tree as a zip archive."""

    def __init__(self, point: OpenPoint, put: Send) -> None:
        self._point = point
        self._out = Joined(put)
        self._written = _Collected()
        self._zip = zipfile.ZipFile(self._written, "w", zipfile.ZIP_DEFLATED)

    async def send(self, top: Attributes, name: bytes) -> None:
        """Send a directory and all entries below it.

        Devices, pipes and sockets are left out; a file is stored once for each hard link.

        Args:
            top: the directory.
            name: the name of the directory in the archive.

        Raises:
            PastUnavailableError: content of a file is lost; the archive has no list.
            StoreError: the bucket cannot be reached.
        """
        async with aclosing(archive.entries(self._point, top, name)) as steps:
            async for step in steps:
                if stat.S_IFMT(step.attributes.mode) in _KINDS:
                    await self._add(step)
        self._zip.close()
        await self._out.put(self._written.take())
        await self._out.flush()

    async def _add(self, step: Step) -> None:
        attributes = step.attributes
        with self._zip.open(_record_of(step), "w") as file:

            async def write(data: bytes) -> None:
                if len(data) > BROWSE_PIECE_BYTES:
                    await in_thread(file.write, data)
                else:
                    file.write(data)
                await self._out.put(self._written.take())

            if stat.S_ISREG(attributes.mode):
                await source.send(self._point, attributes, write)
            elif stat.S_ISLNK(attributes.mode):
                await write(symlinks.target(self._point.db, attributes.ino))
        await self._out.put(self._written.take())


async def require_few(
    point: OpenPoint, top: Attributes, *, entries_max: int = BROWSE_ZIP_ENTRIES_MAX
) -> None:
    """Refuse a directory with too many entries for a zip archive.

    Raises:
        SettingsError: the directory has too many entries.
    """
    count = 0
    async with aclosing(archive.entries(point, top, b"")) as steps:
        async for _step in steps:
            count += 1
            if count > entries_max:
                raise SettingsError(
                    f"the folder has too many entries for a zip (more than {entries_max:,});"
                    " download it as tar"
                )


def _record_of(step: Step) -> zipfile.ZipInfo:
    mode, mtime_s = step.attributes.mode, step.attributes.mtime_ns // _NS
    is_directory = stat.S_ISDIR(mode)
    record = zipfile.ZipInfo(_name(step.path) + "/" * is_directory, _dos_time(mtime_s))
    record.create_system = _UNIX
    record.external_attr = (mode & ~0o7000) << 16 | _DIRECTORY * is_directory
    record.compress_type = zipfile.ZIP_DEFLATED
    if mtime_s in _TIME_RANGE:
        record.extra = _TIME.pack(_TIME_ID, _TIME.size - 4, 1, mtime_s)
    if stat.S_ISREG(mode):
        record.file_size = step.attributes.size_bytes  # makes zipfile use zip64 above 2 GiB
    return record


def _name(path: bytes) -> str:
    """Return a path as text, with unprintable characters escaped as %XX.

    The backslash and the colon are also escaped, because Windows treats them as separators of paths
    and of drives. Different paths stay different.
    """
    text = _ESCAPED.sub(lambda found: _percent(found[0]), path.decode(errors="surrogateescape"))
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _percent(one) for one in text)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogateescape"))


def _dos_time(time_s: int) -> tuple[int, int, int, int, int, int]:
    """Return a local time in the format of MS-DOS, limited to the years of this format."""
    when = datetime.fromtimestamp(time_s, tz=timezone.utc).astimezone()
    if when.year not in _YEARS:
        return (1980, 1, 1, 0, 0, 0)
    return when.year, when.month, when.day, when.hour, when.minute, when.second
