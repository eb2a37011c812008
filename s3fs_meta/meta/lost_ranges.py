"""The extended attribute that lists the lost ranges of a file, which fsck replaced with holes.

Owns: the name of the attribute and its format, one line ``first-last`` for each range. Does not
know: why bytes are lost. Any process may set the attribute, so invalid lines are ignored.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from s3fs_meta.limits import XATTR_VALUE_BYTES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables.properties import get
from s3fs_meta.model import BlockIndex, Ino

ATTRIBUTE: Final = b"user.s3fs-meta.lost"
MORE: Final = b"more\n"  # last line of the value if not all ranges fit into it
_END: Final = 1 << 63
_DIGITS_MAX: Final = 19


class LostPart(NamedTuple):
    """The blocks in one line of the lost ranges of a file, from *first* to *last* (inclusive)."""

    ino: Ino
    first: BlockIndex
    last: BlockIndex


def lines(ranges: Iterable[range]) -> bytes:
    """Format ranges of bytes as lines of the attribute."""
    return b"".join(b"%d-%d\n" % (one.start, one.stop - 1) for one in ranges)


def encoded(ranges: Iterable[range]) -> bytes:
    """Return the attribute's value for ranges in any order, which may overlap.

    If the ranges do not fit into the value, its last line covers the rest of the file, too.
    """
    found: list[range] = []
    for one in sorted(ranges, key=lambda each: each.start):
        if found and one.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, one.stop))
        else:
            found.append(one)
    if found and found[-1].stop == _END:  # the line MORE represents a range without an end
        found[-1] = range(found[-1].start, found[-1].start + 1)
        value = lines(found) + MORE
    else:
        value = lines(found)
    if len(value) > XATTR_VALUE_BYTES_MAX:
        value = value[: value.rfind(b"\n", 0, XATTR_VALUE_BYTES_MAX - len(MORE)) + 1] + MORE
    return value


def and_all_after(ranges: list[range]) -> list[range]:
    """Return ranges and the rest of the file after the last of them."""
    return [*ranges, range(ranges[-1].stop, _END)]


def cut_at(ranges: Iterable[range], size_bytes: int) -> list[range]:
    """Return the ranges; a range that crosses the end of the file now ends there."""
    return [
        range(one.start, size_bytes) if one.start < size_bytes < one.stop < _END else one
        for one in ranges
    ]


def parse(value: bytes) -> list[range]:
    """Return the ranges listed in the attribute's value, in order; they may overlap."""
    found: list[range] = []
    for line in value[:XATTR_VALUE_BYTES_MAX].splitlines(keepends=True):
        first, _dash, last = line.rstrip(b"\n").partition(b"-")
        if line == MORE:
            found.append(range(found[-1].stop if found else 0, _END))
        elif _is_number(first) and _is_number(last) and int(first) <= int(last) < _END:
            found.append(range(int(first), int(last) + 1))
    return found


def _is_number(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= _DIGITS_MAX


def without(ranges: Iterable[range], removed: Iterable[range]) -> list[range]:
    """Return the parts of *ranges* that do not overlap with *removed*."""
    left = list(ranges)
    for cut in removed:
        left = [
            piece
            for one in left
            for piece in (
                range(one.start, min(one.stop, cut.start)),
                range(max(one.start, cut.stop), one.stop),
            )
            if piece
        ]
    return left


def iterate(db: Database) -> Iterator[LostPart]:
    """Yield the lost parts of all files, from their attributes; some may have new content by now.

    The parts of a file are in ascending order and do not overlap, even if a program has written
    overlapping ranges to the attribute.
    """
    block_bytes = int(get(db, "block_bytes"))
    for ino, value in db.iterate("SELECT ino, value FROM xattrs WHERE name = ?", (ATTRIBUTE,)):
        ranges = parse(value) if isinstance(value, bytes) else []
        done = -1
        for one in sorted(ranges, key=lambda each: each.start):
            first = max(one.start // block_bytes, done + 1)
            last = (one.stop - 1) // block_bytes
            if first <= last:
                yield LostPart(ino, BlockIndex(first), BlockIndex(last))
                done = last
