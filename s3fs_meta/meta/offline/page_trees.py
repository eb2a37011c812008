"""A check that the pages of a database file form trees, before SQLite reads it.

On a plain filesystem any writer of the bucket can make an image. SQLite bounds the depth of a tree,
but not how often a page occurs in it: a few pages that name each other three hundred times make a
scan that never ends, and the first scan is that of the schema, when the file is opened.

Owns: reading the child pages of B-trees. Does not know: rows, schemas, where the file came from.
Keeps: each page of the file is looked at once at most, so the time is linear in its size.
Source: https://www.sqlite.org/fileformat2.html, "B-tree Pages".
"""

import mmap
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from s3fs_meta.errors import FormatError

SCHEMA_ROOT: Final = 1  # the tree that names the roots of all others
_MAGIC: Final = b"SQLite format 3\0"
_FILE_HEADER_BYTES: Final = 100
_PAGE_SIZE_AT: Final = 16
_PAGE_BYTES_MAX: Final = 65536
_PAGE_BYTES_MIN: Final = 512
_LEAVES: Final = frozenset({10, 13})  # of an index, of a table
_INTERIORS: Final = frozenset({2, 5})
_HEADER: Final = struct.Struct(">BHHHBI")  # type, free block, cells, content, fragments, last child
_NUMBER: Final = struct.Struct(">I")


def require_schema_tree(path: Path, key: str) -> None:
    """Refuse a file whose schema SQLite may read for ever. Raises as ``PageTrees``."""
    trees = PageTrees(path, key)
    try:
        trees.require_trees([SCHEMA_ROOT])
    finally:
        trees.close()


class PageTrees:
    """The trees of one file; blocking."""

    def __init__(self, path: Path, key: str) -> None:
        """Map a file that no process changes.

        Args:
            path: of the file.
            key: of the object that it came from, for errors.

        Raises:
            FormatError: it does not begin like a database.
        """
        self._key = key
        with path.open("rb") as file:
            begin = file.read(_FILE_HEADER_BYTES)
            if len(begin) < _FILE_HEADER_BYTES or not begin.startswith(_MAGIC):
                raise FormatError(key, "it does not begin like a database")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        page_bytes = int.from_bytes(begin[_PAGE_SIZE_AT : _PAGE_SIZE_AT + 2], "big")
        self._page_bytes = _PAGE_BYTES_MAX if page_bytes == 1 else page_bytes
        if self._page_bytes < _PAGE_BYTES_MIN or self._page_bytes & (self._page_bytes - 1):
            self._map.close()
            raise FormatError(key, f"pages of {page_bytes} bytes")
        self._pages = len(self._map) // self._page_bytes
        self._seen = bytearray(self._pages // 8 + 1)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()

    def require_trees(self, roots: Iterable[int]) -> None:
        """Refuse a page that occurs twice below these roots or in earlier calls.

        Raises:
            FormatError: it does, or a page is none of a tree.
        """
        waiting = list(roots)
        while waiting:
            page = waiting.pop()
            if not 0 < page <= self._pages:
                raise FormatError(self._key, f"it names page {page} of {self._pages}")
            if self._seen[page >> 3] & 1 << (page & 7):
                raise FormatError(self._key, f"its page {page} is named twice")
            self._seen[page >> 3] |= 1 << (page & 7)
            waiting.extend(self._children(page))

    def _children(self, page: int) -> Iterator[int]:
        begin = (page - 1) * self._page_bytes
        at = begin + (_FILE_HEADER_BYTES if page == SCHEMA_ROOT else 0)
        kind = self._map[at]
        if kind in _LEAVES:
            return
        if kind not in _INTERIORS:
            raise FormatError(self._key, f"its page {page} is none of a tree")
        _, _, cells, _, _, last = _HEADER.unpack_from(self._map, at)
        if at + _HEADER.size + 2 * cells > begin + self._page_bytes:
            raise FormatError(self._key, f"its page {page} has {cells} cells")
        yield last
        places = self._map[at + _HEADER.size : at + _HEADER.size + 2 * cells]
        for (place,) in struct.iter_unpack(">H", bytes(places)):
            if place + _NUMBER.size > self._page_bytes:
                raise FormatError(self._key, f"its page {page} has a cell at byte {place}")
            yield _NUMBER.unpack_from(self._map, begin + place)[0]
