"""Written byte ranges that the next fsync must put into the intent log."""

import pytest

from s3fs_meta.cache.crash_safety.unlogged import UnloggedRanges
from s3fs_meta.limits import INTENT_CONTENT_BYTES_MAX, INTENT_PIECES_MAX
from s3fs_meta.model import BlockId

ONE, TWO = BlockId(1), BlockId(2)


@pytest.fixture
def ranges() -> UnloggedRanges:
    """Return empty ranges that are known to be complete, as after a sync of all files."""
    ranges = UnloggedRanges()
    ranges.begin_sync()
    return ranges


def test_written_ranges_of_a_block_are_unknown_before_the_first_sync_begins() -> None:
    """A killed daemon may have written ranges that this mount has not recorded."""
    ranges = UnloggedRanges()
    ranges.add(ONE, 0, 5)
    known = [ranges.are_known]

    ranges.begin_sync()

    assert [*known, ranges.are_known] == [False, True]
    assert ranges.take() == []


def test_consecutive_writes_form_one_written_range(ranges: UnloggedRanges) -> None:
    ranges.add(ONE, 0, 5)
    ranges.add(ONE, 5, 9)
    ranges.add(ONE, 2, 4)
    ranges.add(TWO, 4, 6)
    ranges.add(ONE, 9, 10)

    assert ranges.take() == [(ONE, 0, 9), (TWO, 4, 6), (ONE, 9, 10)]


def test_each_written_range_is_returned_only_once(ranges: UnloggedRanges) -> None:
    ranges.add(ONE, 0, 5)
    ranges.take()
    ranges.add(TWO, 0, 1)

    assert ranges.take() == [(TWO, 0, 1)]


def test_written_ranges_are_forgotten_above_a_maximum_number_of_bytes(
    ranges: UnloggedRanges,
) -> None:
    ranges.add(ONE, 0, INTENT_CONTENT_BYTES_MAX)
    assert ranges.are_known
    ranges.add(ONE, INTENT_CONTENT_BYTES_MAX, INTENT_CONTENT_BYTES_MAX + 1)
    assert not ranges.are_known


def test_written_ranges_are_forgotten_above_a_maximum_number_of_ranges(
    ranges: UnloggedRanges,
) -> None:
    for number in range(INTENT_PIECES_MAX):
        ranges.add(BlockId(number % 2 + 1), 0, 1)
    assert ranges.are_known
    ranges.add(BlockId(3), 0, 1)
    assert not ranges.are_known


def test_bytes_of_returned_ranges_do_not_count_towards_the_maximum(ranges: UnloggedRanges) -> None:
    for _ in range(3):
        ranges.add(ONE, 0, INTENT_CONTENT_BYTES_MAX)
        ranges.take()

    assert ranges.are_known


def test_intent_log_covers_a_logged_block_until_the_block_grows(ranges: UnloggedRanges) -> None:
    ranges.add(ONE, 0, 5)
    taken = ranges.take()
    assert not ranges.covers(ONE, 5)
    ranges.note_logged(taken)
    ranges.add(ONE, 3, 4)
    ranges.note_logged(ranges.take())

    assert (ranges.covers(ONE, 5), ranges.covers(ONE, 6), ranges.covers(TWO, 0)) == (
        True,
        False,
        False,
    )


def test_intent_log_covers_a_logged_block_until_a_sync_ends(
    ranges: UnloggedRanges,
) -> None:
    """Until the file of a logged block has been synced, only the log contains its content."""
    ranges.add(ONE, 0, 5)
    ranges.note_logged(ranges.take())
    ranges.give_up()
    ranges.begin_sync()
    assert ranges.covers(ONE, 5)

    ranges.end_sync()

    assert not ranges.covers(ONE, 5)
