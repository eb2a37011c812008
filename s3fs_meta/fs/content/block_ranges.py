"""Ranges of bytes cut into blocks. Pure functions.

Owns: the arithmetic of offsets, and which of four ways a part of a write takes.
"""

import enum
from typing import NamedTuple

from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import BlockIndex, BlockState


class Span(NamedTuple):
    """Bytes ``[start, stop)`` of one block of a file; never empty."""

    block_index: BlockIndex
    start: int
    stop: int


class How(enum.Enum):
    """How a part of a write is done."""

    NEW = "new"  # a new block; what a present one holds is not needed
    IN_PLACE = "in place"  # into a dirty block
    COPY = "copy"  # the present block is frozen: copy what stays, write into the copy
    FETCH = "fetch"  # as COPY, but the present block is not here


class Step(NamedTuple):
    """One part of a write with the block that it meets."""

    span: Span
    located: Located | None
    how: How


class Shortening(NamedTuple):
    """The effect of shortening a file on its blocks."""

    remove_from: BlockIndex  # blocks from here on go
    keep_index: BlockIndex  # this one keeps keep_bytes, if they are not 0
    keep_bytes: int


def spans(offset: int, stop: int, block_bytes: int) -> list[Span]:
    """Return the parts of ``[offset, stop)``, ascending, one per block."""
    first = offset // block_bytes
    last = (stop - 1) // block_bytes
    if first == last:
        base = first * block_bytes
        return [Span(BlockIndex(first), offset - base, stop - base)]
    parts = [Span(BlockIndex(first), offset - first * block_bytes, block_bytes)]
    parts += [Span(BlockIndex(index), 0, block_bytes) for index in range(first + 1, last)]
    parts.append(Span(BlockIndex(last), 0, stop - last * block_bytes))
    return parts


def how_to_write(span: Span, located: Located | None, *, is_local: bool) -> How:
    """Return how a part is written, given the block that is there."""
    if located is None:
        return How.NEW
    if located.state is BlockState.DIRTY:
        return How.IN_PLACE
    if span.start == 0 and span.stop >= located.plain_bytes:
        return How.NEW
    return How.COPY if is_local else How.FETCH


def bytes_to_keep(span: Span, plain_bytes: int) -> int:
    """Return how much of a block must be copied before a part of it is written."""
    return min(span.start, plain_bytes) if span.stop >= plain_bytes else plain_bytes


def cut(size_bytes: int, block_bytes: int) -> Shortening:
    """Return what shortening a file to *size_bytes* does to its blocks."""
    whole, rest = divmod(size_bytes, block_bytes)
    return Shortening(BlockIndex(whole + (rest > 0)), BlockIndex(whole), rest)
