"""Tests of byte ranges that are split at block boundaries, and of plans of writes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3fs_meta.fs.content.block_ranges import (
    How,
    Part,
    Span,
    bytes_to_keep,
    cut,
    lie_in_dirty_blocks,
    plan_write,
    spans,
)
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.model import Attributes, BlockId, BlockIndex, BlockState, Ino

B = 100


def located(plain_bytes: int, state: BlockState | None) -> Located:
    """Return a block of a given length with its location."""
    return Located(BlockId(1), plain_bytes, None, None, None, None, state)


def span(start: int, stop: int) -> Span:
    """Return a byte range within block 0."""
    return Span(BlockIndex(0), start, stop)


def sized(size_bytes: int) -> Attributes:
    """Return a regular file of a given size."""
    return Attributes(Ino(7), 0o100644, 1, 0, 0, size_bytes, 0, 0, 0, 0, 0, Ino(1), 0, 0)


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_block_spans_cover_every_byte_of_a_range_exactly_once(offset: int, length: int) -> None:
    """Every byte of a range is in exactly one span, and each span lies within one block."""
    parts = spans(offset, offset + length, B)
    covered = [
        part.block_index * B + byte for part in parts for byte in range(part.start, part.stop)
    ]
    assert covered == list(range(offset, offset + length))
    assert all(0 <= part.start < part.stop <= B for part in parts)


@pytest.mark.parametrize(
    ("part", "there", "is_local", "how"),
    [
        (span(10, 20), None, True, How.NEW),
        (span(10, 20), located(50, BlockState.DIRTY), True, How.IN_PLACE),
        (span(0, 100), located(50, BlockState.DIRTY), True, How.IN_PLACE),
        (span(10, 20), located(50, BlockState.SEALED), True, How.COPY),
        (span(10, 20), located(50, BlockState.CLEAN), True, How.COPY),
        (span(10, 20), located(50, None), False, How.FETCH),
        (span(0, 50), located(50, None), False, How.NEW),
        (span(0, 49), located(50, None), False, How.FETCH),
        (span(0, 100), located(50, BlockState.SEALED), True, How.NEW),
    ],
)
def test_write_plan_selects_a_method_for_each_part_of_a_write(
    part: Span, there: Located | None, is_local: bool, how: How
) -> None:
    """A write plan fetches or copies old content only if part of this content remains."""
    plan = plan_write(sized(100), [(part, there)], lambda _block: is_local)
    assert [step.how for step in plan.steps] == [how]
    assert plan.missing == ([there] if how is How.FETCH else [])


@pytest.mark.parametrize(
    ("parts", "added_bytes", "overwrites", "changes_no_row"),
    [
        ([(span(10, 20), located(50, BlockState.DIRTY))], 0, True, True),
        ([(span(40, 60), located(50, BlockState.DIRTY))], 10, True, False),
        ([(span(50, 60), located(50, BlockState.DIRTY))], 10, False, False),
        ([(span(10, 20), None)], 20, False, False),
        ([(span(10, 20), located(50, BlockState.CLEAN))], 0, False, False),
        ([(span(90, 100), located(100, BlockState.DIRTY)), (span(0, 7), None)], 7, True, False),
        (
            [
                (span(90, 100), located(100, BlockState.DIRTY)),
                (span(0, 7), located(9, BlockState.DIRTY)),
            ],
            0,
            True,
            True,
        ),
    ],
)
def test_write_plan_reports_added_bytes_and_overwrites_and_row_changes(
    parts: list[Part], added_bytes: int, overwrites: bool, changes_no_row: bool
) -> None:
    """A write plan reports how many bytes it adds, and whether committed bytes or rows change."""
    plan = plan_write(sized(500), parts, lambda _block: True)
    assert (plan.added_bytes, plan.overwrites) == (added_bytes, overwrites)
    assert lie_in_dirty_blocks(parts) == changes_no_row


@pytest.mark.parametrize(
    ("part", "plain_bytes", "kept"),
    [
        (span(10, 20), 50, 50),
        (span(10, 50), 50, 10),
        (span(60, 70), 50, 50),
        (span(0, 10), 50, 50),
    ],
)
def test_write_plan_copies_only_content_that_is_not_overwritten(
    part: Span, plain_bytes: int, kept: int
) -> None:
    """Content after the start of a write is copied only if the write does not replace it."""
    assert bytes_to_keep(part, plain_bytes) == kept


@pytest.mark.parametrize(
    ("size", "remove_from", "keep_index", "keep_bytes"),
    [(0, 0, 0, 0), (1, 1, 0, 1), (99, 1, 0, 99), (100, 1, 1, 0), (250, 3, 2, 50)],
)
def test_truncation_shortens_the_block_at_the_new_end_of_file(
    size: int, remove_from: int, keep_index: int, keep_bytes: int
) -> None:
    """Truncation to a block boundary removes complete blocks and does not shorten any block."""
    assert cut(size, B) == (remove_from, keep_index, keep_bytes)
