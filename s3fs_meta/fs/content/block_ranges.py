"""Splitting ranges of bytes into blocks, and planning a write. Pure functions.

Owns: the arithmetic of offsets, and the choice of one of four methods for each part of a write.
"""

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple

from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import Attributes, BlockIndex, BlockState

_new = tuple.__new__  # tuple.__new__ is three times as fast as calling the class


class Span(NamedTuple):
    """Bytes ``[start, stop)`` of one block in a file; never empty."""

    block_index: BlockIndex
    start: int
    stop: int


Part = tuple[Span, Located | None]  # a range of a file and its current block (None for a hole)


class How(enum.Enum):
    """The method by which one part of a write changes a block."""

    NEW = "new"  # write a new block, because no byte of the old one is kept
    IN_PLACE = "in place"  # write into a dirty block
    COPY = "copy"  # copy the other bytes of a cached block that is not dirty
    FETCH = "fetch"  # fetch a block that is not cached, and then copy it


class WritePart(NamedTuple):
    """One part of a write, and the current block of the file at this position."""

    span: Span
    located: Located | None
    how: How


class WritePlan(NamedTuple):
    """One write, with the inode and blocks that it changes; valid until the next schedule point."""

    before: Attributes
    steps: list[WritePart]  # the steps of the write, in ascending order of file offset
    missing: list[Located]  # blocks to fetch before the write is planned again
    added_bytes: int  # total growth of all blocks in bytes
    overwrites: bool  # True if the write changes committed bytes in place
    copied_bytes: int  # bytes of cached blocks that the write copies into new blocks


class Shortening(NamedTuple):
    """The blocks that are removed, and the block that is cut, when a file is shortened."""

    remove_from: BlockIndex  # first removed block; all later blocks are also removed
    keep_index: BlockIndex  # index of the block whose first keep_bytes are kept
    keep_bytes: int


def spans(offset: int, stop: int, block_bytes: int) -> list[Span]:
    """Split the bytes ``[offset, stop)`` at block boundaries; return one span per block."""
    first = offset // block_bytes
    last = (stop - 1) // block_bytes
    if first == last:
        base = first * block_bytes
        return [_new(Span, (first, offset - base, stop - base))]
    parts = [Span(BlockIndex(first), offset - first * block_bytes, block_bytes)]
    parts += [Span(BlockIndex(index), 0, block_bytes) for index in range(first + 1, last)]
    parts.append(Span(BlockIndex(last), 0, stop - last * block_bytes))
    return parts


def lie_in_dirty_blocks(parts: Sequence[Part]) -> bool:
    """Return whether all parts are inside dirty blocks. A write to such parts changes no row."""
    for (_, _, stop), located in parts:
        if located is None or located.state is not BlockState.DIRTY or stop > located.plain_bytes:
            return False
    return True


def plan_write(
    before: Attributes, parts: Sequence[Part], is_local: Callable[[Located], bool]
) -> WritePlan:
    """Plan a write: choose the method for each part.

    Args:
        before: the attributes of the inode before the write.
        parts: the parts of the write, in ascending order.
        is_local: returns whether a block is cached and needs no verification.
    """
    steps: list[WritePart] = []
    missing: list[Located] = []
    added_bytes = copied_bytes = 0
    overwrites = False
    for span, located in parts:
        plain_bytes = 0 if located is None else located.plain_bytes
        added_bytes += max(span.stop - plain_bytes, 0)
        if located is not None and located.state is BlockState.DIRTY:
            how = How.IN_PLACE
            overwrites = overwrites or span.start < plain_bytes
        elif located is None or (span.start == 0 and span.stop >= plain_bytes):
            how = How.NEW
        elif is_local(located):
            how = How.COPY
            copied_bytes += bytes_to_keep(span, plain_bytes)
        else:
            how = How.FETCH
            missing.append(located)
        steps.append(_new(WritePart, (span, located, how)))
    return _new(WritePlan, (before, steps, missing, added_bytes, overwrites, copied_bytes))


def bytes_to_keep(span: Span, plain_bytes: int) -> int:
    """Return the number of leading bytes of a block to copy before a part of it is written."""
    return min(span.start, plain_bytes) if span.stop >= plain_bytes else plain_bytes


def cut(size_bytes: int, block_bytes: int) -> Shortening:
    """Return the blocks to remove and to cut when a file is shortened to *size_bytes*."""
    full, rest = divmod(size_bytes, block_bytes)
    return Shortening(BlockIndex(full + (rest > 0)), BlockIndex(full), rest)
