"""The kernel's lookup counts of inodes.

Owns: the lookup counts of one mount. Each reply to a lookup, a creation or a listing adds 1 to the
count of each inode in the reply; the FUSE request FORGET subtracts a given number.
Does not know: nlink, open counts, rows.
Memory: the kernel may cache millions of inodes. One byte per inode, in pages of consecutive
numbers, takes about 2 MB per million inodes (a dict takes about 100 MB). Counts above 254 are in a
separate dict. An empty page is deleted.
Source: libfuse, fuse_lowlevel.h, comment on forget.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from s3fs_meta.model import Ino

_PAGE_BITS: Final = 8  # one page has the counts of 256 inodes, and takes 400 bytes
_PAGE_INODES: Final = 1 << _PAGE_BITS
_SLOT_MASK: Final = _PAGE_INODES - 1
_OVERFLOWED: Final = 255  # in a page: the count is above 254, and the dict contains it
_EMPTY: Final = bytes(_PAGE_INODES)


class LookupCounts:
    """The lookup counts of all inodes. The count of an inode that is not cached is 0."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._overflow: dict[Ino, int] = {}

    @property
    def pages(self) -> int:
        """Return the number of pages with lookup counts in memory."""
        return len(self._pages)

    def count(self, ino: Ino) -> int:
        """Return the lookup count of one inode."""
        page = self._pages.get(ino >> _PAGE_BITS)
        if page is None:
            return 0
        value = page[ino & _SLOT_MASK]
        return value if value < _OVERFLOWED else self._overflow[ino]

    def known_among(self, inos: Iterable[Ino]) -> set[Ino]:
        """Return the inodes in *inos* that have a lookup count."""
        pages = self._pages
        near = [ino for ino in inos if ino >> _PAGE_BITS in pages]
        return {ino for ino in near if pages[ino >> _PAGE_BITS][ino & _SLOT_MASK]}

    def may_know_between(self, first: Ino, last: Ino) -> bool:
        """Return whether any inode from *first* to *last* may have a lookup count."""
        low, high = first >> _PAGE_BITS, last >> _PAGE_BITS
        if high - low < len(self._pages):
            return any(number in self._pages for number in range(low, high + 1))
        return any(low <= number <= high for number in self._pages)

    def known(self) -> Iterator[Ino]:
        """Yield the inodes with a lookup count; changes during the iteration may be missed."""
        for number in list(self._pages):
            page = self._pages.get(number, _EMPTY)
            base = number << _PAGE_BITS
            yield from [Ino(base + slot) for slot, count in enumerate(page) if count]

    def add(self, ino: Ino, times: int = 1) -> None:
        """Add *times*, the number of answered lookups, to the lookup count of an inode."""
        number = ino >> _PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = bytearray(_PAGE_INODES)
        slot = ino & _SLOT_MASK
        value = page[slot] + times
        if value < _OVERFLOWED:
            page[slot] = value
        elif page[slot] == _OVERFLOWED:
            self._overflow[ino] += times
        else:
            page[slot] = _OVERFLOWED
            self._overflow[ino] = value

    def forget(self, ino: Ino, times: int) -> int:
        """Subtract *times* from the lookup count of an inode; return the new count, at least 0."""
        number = ino >> _PAGE_BITS
        page = self._pages.get(number)
        if page is None:
            return 0
        slot = ino & _SLOT_MASK
        if page[slot] == _OVERFLOWED:
            remaining = max(self._overflow.pop(ino) - times, 0)
        else:
            remaining = max(page[slot] - times, 0)
        if remaining >= _OVERFLOWED:
            self._overflow[ino] = remaining
            return remaining
        page[slot] = remaining
        if not remaining and page == _EMPTY:
            del self._pages[number]
        return remaining
