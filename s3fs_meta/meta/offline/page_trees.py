"""A check that the pages of a database file form trees, before SQLite reads the file.

Anyone who can write to the bucket of an unencrypted filesystem can forge an image in which a page
occurs many times in a tree. SQLite limits only the depth of a tree, so a scan of a few such pages
practically never ends. SQLite makes such a scan when it opens the file.

Owns: following child pages of B-trees. Does not know: rows, schemas, the source of the file.
Keeps: each page of the file is read at most once, so the time is linear in the file's size.
Source: https://www.sqlite.org/fileformat2.html, "B-tree Pages".
"""

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from s3fs_meta.errors import FormatError

SCHEMA_ROOT: Final = 1  # root page of the schema, which lists the root pages of all other trees
_MAGIC: Final = b"SQLite format 3\0"
_FILE_HEADER_BYTES: Final = 100
_PAGE_SIZE_AT: Final = 16
_PAGE_BYTES_MAX: Final = 65536
_PAGE_BYTES_MIN: Final = 512
_LEAVES: Final = frozenset({10, 13})  # types of leaf pages: 10 for an index, 13 for a table
_INTERIORS: Final = frozenset({2, 5})
# Fields of a page header: type, free block, cells, content, fragments, last child.
_HEADER: Final = struct.Struct(">BHHHBI")
_NUMBER: Final = struct.Struct(">I")


def require_schema_tree(path: Path, key: str) -> None:
    """Raise FormatError if the pages of the schema do not form a tree.

    Raises the same errors as ``PageTrees``.
    """
    trees = PageTrees(path, key)
    try:
        trees.require_trees([SCHEMA_ROOT])
    finally:
        trees.close()


class PageTrees:
    """The B-trees of one database file. All calls block."""

    def __init__(self, path: Path, key: str) -> None:
        """Open a file; no process may change it.

        Args:
            path: path of the file.
            key: key of the object from which it was downloaded, for error messages.

        Raises:
            FormatError: the file has no valid header of an SQLite database.
        """
        self._key = key
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        begin = os.pread(self._fd, _FILE_HEADER_BYTES, 0)
        if len(begin) < _FILE_HEADER_BYTES or not begin.startswith(_MAGIC):
            self.close()
            raise FormatError(key, "the file does not begin with the header of an SQLite database")
        page_bytes = int.from_bytes(begin[_PAGE_SIZE_AT : _PAGE_SIZE_AT + 2], "big")
        self._page_bytes = _PAGE_BYTES_MAX if page_bytes == 1 else page_bytes
        if self._page_bytes < _PAGE_BYTES_MIN or self._page_bytes & (self._page_bytes - 1):
            self.close()
            raise FormatError(key, f"the file header has an invalid page size: {page_bytes}")
        self._pages = os.fstat(self._fd).st_size // self._page_bytes
        self._seen = bytearray(self._pages // 8 + 1)

    def close(self) -> None:
        """Close the database file."""
        os.close(self._fd)

    def require_trees(self, roots: Iterable[int]) -> None:
        """Raise FormatError if a page occurs twice below the roots of this call and earlier calls.

        Raises:
            FormatError: a page occurs twice, is outside the file, or is not a B-tree page.
        """
        waiting = list(roots)
        while waiting:
            page = waiting.pop()
            if not 0 < page <= self._pages:
                text = f"the file refers to page {page}, but has only {self._pages} pages"
                raise FormatError(self._key, text)
            if self._seen[page >> 3] & 1 << (page & 7):
                raise FormatError(self._key, f"two pages of the file refer to page {page}")
            self._seen[page >> 3] |= 1 << (page & 7)
            waiting.extend(self._children(page))

    def _children(self, number: int) -> Iterator[int]:
        page = os.pread(self._fd, self._page_bytes, (number - 1) * self._page_bytes)
        at = _FILE_HEADER_BYTES if number == SCHEMA_ROOT else 0
        kind = page[at]
        if kind in _LEAVES:
            return
        if kind not in _INTERIORS:
            raise FormatError(self._key, f"page {number} of the file is not a B-tree page")
        _, _, cells, _, _, last = _HEADER.unpack_from(page, at)
        if at + _HEADER.size + 2 * cells > self._page_bytes:
            text = f"page {number} of the file claims {cells} cells, more than fit into a page"
            raise FormatError(self._key, text)
        yield last
        places = page[at + _HEADER.size : at + _HEADER.size + 2 * cells]
        for (place,) in struct.iter_unpack(">H", bytes(places)):
            if place + _NUMBER.size > self._page_bytes:
                text = f"page {number} of the file has a cell at byte {place}, outside the page"
                raise FormatError(self._key, text)
            yield _NUMBER.unpack_from(page, place)[0]
