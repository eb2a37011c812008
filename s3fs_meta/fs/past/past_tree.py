"""The tree of past states: points in time as directories, with the files of that time.

Owns: past inode numbers, attributes as programs see them, reading content.
Does not know: FUSE, opening a point in time (``open_points``).
Keeps: nothing can be changed. Set-user-ID bits, capabilities and device numbers of past files have
no effect. A past inode number never equals that of a live inode or of another past file.
Tasks: any handler.

A past inode number is ``PAST_INO_MIN + (slot << PAST_INO_BITS) + ino``. A point gets the next slot
at its first use, and keeps it until the unmount. The number of a past inode can thus be computed,
and no table of inodes is needed.
"""

import stat
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import trio

from s3fs_meta.errors import (
    NameTooLongError,
    NeedsDirectoryError,
    NoAttributeError,
    NoInodeError,
    PastUnavailableError,
)
from s3fs_meta.fs.past.open_points import OpenPoint, OpenPoints
from s3fs_meta.fs.xattrs import CAPABILITY, visible_to
from s3fs_meta.limits import (
    NAME_BYTES_MAX,
    PAST_CACHED_BYTES_MAX,
    PAST_DOWNLOADS_MAX,
    PAST_INO_BITS,
    PAST_INO_MIN,
    PAST_NAME_KEPT_S,
    PAST_NAMES_MAX,
)
from s3fs_meta.meta.tables import block_map, dentries, inodes, symlinks, xattrs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import ROOT_INO, Attributes, BlockIndex, Caller, Cookie, Ino, Txg
from s3fs_meta.options.option_syntax import parse_point_in_time

PAST_TOP_INO: Final = Ino(PAST_INO_MIN)  # the directory .snapshots itself, in the reserved slot 0
_AGO: Final = "-ago"  # a relative time without a space, as in 1h-ago
_INO_MASK: Final = (1 << PAST_INO_BITS) - 1
_PRIVILEGES: Final = stat.S_ISUID | stat.S_ISGID

_Page = list[tuple[bytes, Cookie, Attributes]]


class PastTree:
    """The past states of one mount, as inodes below the directory ``.snapshots``."""

    def __init__(
        self,
        points: OpenPoints,
        name: bytes,
        block_bytes: int,
        root: Callable[[], Attributes],
        now_ns: Callable[[], int],
        *,
        names_max: int = PAST_NAMES_MAX,
        cached_bytes_max: int = PAST_CACHED_BYTES_MAX,
    ) -> None:
        """Prepare to show points in time; none has a slot yet.

        Args:
            points: opens points in time.
            name: the name of the directory of points in time; the directory is in the root.
            block_bytes: size of a block.
            root: returns the attributes of the root directory, whose owner also owns *name*.
            now_ns: returns the current time, from which ages such as 1h-ago are subtracted.
            names_max: the maximum number of names of points whose txg is kept in memory.
            cached_bytes_max: the maximum size of the file content in memory.
        """
        self.name = name
        self._names_max = names_max
        self._cached_bytes_max = cached_bytes_max
        self._points = points
        self._block_bytes = block_bytes
        self._root = root
        self._now_ns = now_ns
        self._slots: dict[Txg, int] = {}
        self._txgs: list[Txg] = [Txg(0)]  # the txg of the point in time in each slot
        # The txg for each recently used name of a point, such as 1h-ago.
        self._meanings: OrderedDict[bytes, Txg] = OrderedDict()
        self._blocks: OrderedDict[tuple[Txg, int], bytes] = OrderedDict()
        self.cached_bytes = 0  # size of the cached file content in memory
        self._fetching: dict[tuple[Txg, int], trio.Event] = {}
        self._downloads = trio.Semaphore(PAST_DOWNLOADS_MAX)

    # --- inodes of the past --------------------------------------------------------------------

    async def lookup(self, parent: Ino, name: bytes) -> Attributes | None:
        """Return the inode of a name in or below ``.snapshots``, or None if the name is missing.

        Raises:
            NoInodeError: the directory is unknown.
            NameTooLongError: the name is longer than NAME_BYTES_MAX.
            StoreError, PastUnavailableError: the point in time cannot be read.
        """
        if len(name) > NAME_BYTES_MAX:
            raise NameTooLongError(len(name))
        if parent == PAST_TOP_INO:
            return await self._point(name)
        txg, ino = self.origin_of(parent)
        async with self._points.used(txg) as point:
            if name == b".":
                return self._attributes(point, txg, ino)
            if name == b"..":
                return self._above(point, txg, ino)
            found = dentries.find_attributes(point.db, ino, name)
            return None if found is None else self._shown(txg, found)

    async def getattr(self, ino: Ino) -> Attributes:
        """Return the attributes of an inode. Raises the same errors as ``lookup``."""
        if ino == PAST_TOP_INO:
            return self.top()
        txg, past_ino = self.origin_of(ino)
        async with self._points.used(txg) as point:
            return self._attributes(point, txg, past_ino)

    def top(self) -> Attributes:
        """Return the root's attributes without write permission, for ``.snapshots``."""
        root = self._root()
        return root._replace(
            ino=PAST_TOP_INO,
            mode=stat.S_IFDIR | 0o555 & (root.mode | 0o111),
            nlink=2,
            size_bytes=0,
            mapped_blocks=0,
            parent=ROOT_INO,
            flags=0,
        )

    async def readlink(self, ino: Ino) -> bytes:
        """Return the target of a symbolic link. Raises the same errors as ``lookup``."""
        txg, past_ino = self.origin_of(ino)
        async with self._points.used(txg) as point:
            return symlinks.target(point.db, past_ino)

    async def getxattr(self, ino: Ino, name: bytes) -> bytes:
        """Return the value of an extended attribute; file capabilities are never shown.

        Raises:
            NoAttributeError: there is no such attribute.
            The errors of ``lookup``.
        """
        if ino == PAST_TOP_INO or name == CAPABILITY:
            raise NoAttributeError(ino, name)
        txg, past_ino = self.origin_of(ino)
        async with self._points.used(txg) as point:
            return xattrs.get(point.db, past_ino, name)

    async def listxattr(self, ino: Ino, caller: Caller) -> list[bytes]:
        """Return the names of the extended attributes; only root sees names of ``trusted``.

        Raises the same errors as ``lookup``.
        """
        if ino == PAST_TOP_INO:
            return []
        txg, past_ino = self.origin_of(ino)
        async with self._points.used(txg) as point:
            names = visible_to(caller, xattrs.names(point.db, past_ino))
            return [name for name in names if name != CAPABILITY]

    async def read_directory(self, ino: Ino, after: Cookie, limit: int) -> _Page:
        """Return at most *limit* names after a cookie, sorted by cookie.

        ``.snapshots`` lists the points that are open. Raises the same errors as ``lookup``.
        """
        if ino == PAST_TOP_INO:
            txgs = [txg for txg in self._points.txgs if txg > after]
            found = [await self._numbered(txg) for txg in txgs[:limit]]
            return [
                (b"txg=%d" % txg, Cookie(txg), one) for txg, one in zip(txgs, found, strict=False)
            ]
        txg, past_ino = self.origin_of(ino)
        async with self._points.used(txg) as point:
            if not stat.S_ISDIR(self._attributes(point, txg, past_ino).mode):
                raise NeedsDirectoryError(ino)
            page = dentries.page(point.db, past_ino, after, limit)
            return [(name, cookie, self._shown(txg, one)) for name, cookie, one in page]

    # --- content of past files -----------------------------------------------------------------

    async def read(self, ino: Ino, offset: int, length: int) -> bytes:
        """Return *length* bytes of a file starting at *offset*, or fewer at the end of the file.

        Raises:
            PastUnavailableError: the bucket has lost the content.
            The errors of ``lookup``.
        """
        txg, past_ino = self.origin_of(ino)
        async with self._points.used(txg) as point:
            attributes = self._attributes(point, txg, past_ino)
            stop = min(offset + length, attributes.size_bytes)
            if stop <= offset or not stat.S_ISREG(attributes.mode):
                return b""
            first, last = offset // self._block_bytes, (stop - 1) // self._block_bytes
            located = block_map.locate_range(
                point.db, past_ino, BlockIndex(first), BlockIndex(last)
            )
            parts: list[bytes] = []
            for index in range(first, last + 1):
                start = max(offset - index * self._block_bytes, 0)
                end = min(stop - index * self._block_bytes, self._block_bytes)
                block = located.get(BlockIndex(index))
                data = b"" if block is None else await self._content(point, txg, block)
                parts.append(data[start:end].ljust(end - start, b"\0"))
            return b"".join(parts)

    async def _content(self, point: OpenPoint, txg: Txg, located: Located) -> bytes:
        """Return the content of a block. Concurrent requests for one block read it once."""
        key = (txg, int(located.block))
        while key not in self._blocks:
            waiting = self._fetching.get(key)
            if waiting is not None:
                await waiting.wait()
                continue
            self._fetching[key] = fetched = trio.Event()
            try:
                async with self._downloads:
                    (content,) = await point.reader.read([located])
                if located.plain_bytes and not content.data:
                    raise PastUnavailableError(
                        txg, f"the bucket has lost the content of block {located.block}"
                    )
                self._keep(key, content.data)
            finally:
                del self._fetching[key]
                fetched.set()
        self._blocks.move_to_end(key)
        return self._blocks[key]

    def _keep(self, key: tuple[Txg, int], data: bytes) -> None:
        self._blocks[key] = data
        self.cached_bytes += len(data)
        while self.cached_bytes > self._cached_bytes_max and len(self._blocks) > 1:
            _, dropped = self._blocks.popitem(last=False)
            self.cached_bytes -= len(dropped)

    # --- inode numbers of the past -------------------------------------------------------------

    async def _point(self, name: bytes) -> Attributes | None:
        """Return the root directory at the point in time that a name specifies.

        A relative name such as 1h-ago keeps its txg until the point in time has not been used for
        PAST_NAME_KEPT_S. Otherwise a copy of the tree would mix two points in time.
        """
        kept = self._meanings.get(name)
        if kept is not None and self._points.was_used_within(kept, PAST_NAME_KEPT_S):
            return await self._numbered(kept)
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return None
        now_ns = self._now_ns()
        wanted = parse_point_in_time(text, now_ns) or parse_point_in_time(
            text.replace(_AGO, " ago"), now_ns
        )
        link = None if wanted is None else await self._points.find(wanted)
        if link is None:
            return None
        self._meanings[name] = link.txg
        self._meanings.move_to_end(name)
        if len(self._meanings) > self._names_max:
            self._meanings.popitem(last=False)
        return await self._numbered(link.txg)

    async def _numbered(self, txg: Txg) -> Attributes:
        """Return the root directory at a txg; reserve a slot for the txg if it has none."""
        async with self._points.used(txg) as point:
            if txg not in self._slots:
                self._slots[txg] = len(self._txgs)
                self._txgs.append(txg)
            return self._attributes(point, txg, ROOT_INO)

    def txg_of(self, ino: Ino) -> Txg:
        """Return the txg of a past inode number in this mount, or 0 for ``.snapshots``."""
        return Txg(0) if ino == PAST_TOP_INO else self.origin_of(ino)[0]

    def origin_of(self, ino: Ino) -> tuple[Txg, Ino]:
        """Return the txg and the original inode number of a past inode number.

        Raises:
            NoInodeError: this mount has not assigned the number.
        """
        slot, past_ino = divmod(ino - PAST_INO_MIN, 1 << PAST_INO_BITS)
        if not 0 < slot < len(self._txgs):
            raise NoInodeError(ino)
        return self._txgs[slot], Ino(past_ino)

    def _number(self, txg: Txg, ino: Ino) -> Ino:
        if ino > _INO_MASK:
            raise PastUnavailableError(txg, f"inode number {ino} is too large for .snapshots")
        return Ino(PAST_INO_MIN + (self._slots[txg] << PAST_INO_BITS) + ino)

    def _attributes(self, point: OpenPoint, txg: Txg, ino: Ino) -> Attributes:
        return self._shown(txg, inodes.get(point.db, ino))

    def _above(self, point: OpenPoint, txg: Txg, ino: Ino) -> Attributes:
        if ino == ROOT_INO:
            return self.top()
        return self._attributes(point, txg, inodes.get(point.db, ino).parent)

    def _shown(self, txg: Txg, attributes: Attributes) -> Attributes:
        """Return attributes with past inode numbers, and without privileges."""
        mode = attributes.mode
        if not stat.S_ISDIR(mode):
            mode &= ~_PRIVILEGES
        is_root = attributes.ino == ROOT_INO
        return attributes._replace(
            ino=self._number(txg, attributes.ino),
            mode=mode,
            rdev=0,
            parent=PAST_TOP_INO if is_root else self._number(txg, attributes.parent),
        )
