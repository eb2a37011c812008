"""Lookup counts: correct sums in little memory."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3fs_meta.fs.lookup_counts import LookupCounts
from s3fs_meta.model import Ino


def test_unknown_inode_counts_zero() -> None:
    """An inode without any reply has count 0."""
    assert LookupCounts().count(Ino(1)) == 0


@pytest.mark.parametrize("times", [1, 254, 255, 256, 1000])
def test_forgetting_everything_frees_the_pages(times: int) -> None:
    """A page whose inodes are all forgotten is freed, also after an overflow."""
    counts = LookupCounts()
    for _ in range(times):
        counts.add(Ino(77))
    assert counts.count(Ino(77)) == times
    assert counts.forget(Ino(77), times) == 0
    assert counts.pages == 0


def test_count_below_the_overflow_returns_to_the_page() -> None:
    """A count that falls below 255 is stored in the page again."""
    counts = LookupCounts()
    counts.add(Ino(5), 300)
    assert counts.forget(Ino(5), 100) == 200
    counts.add(Ino(5))
    assert counts.count(Ino(5)) == 201


def test_forgetting_too_often_gives_zero() -> None:
    """The count never falls below zero."""
    counts = LookupCounts()
    counts.add(Ino(5))
    assert counts.forget(Ino(5), 9) == 0
    assert counts.forget(Ino(5), 9) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 600), st.integers(1, 400)), max_size=60))
def test_counts_equal_those_of_a_dictionary(steps: list[tuple[bool, int, int]]) -> None:
    """Counts equal those of a dictionary after any replies and forgets."""
    counts, model = LookupCounts(), dict.fromkeys(range(1, 601), 0)
    for adds, number, times in steps:
        if adds:
            counts.add(Ino(number), times)
            model[number] += times
        else:
            model[number] = max(model[number] - times, 0)
            assert counts.forget(Ino(number), times) == model[number]
    assert {number: counts.count(Ino(number)) for number in model} == model
    assert counts.pages == len({number >> 8 for number, count in model.items() if count})


def test_a_hundred_thousand_known_inodes_take_less_than_a_megabyte() -> None:
    """A hundred thousand known inodes take at most 10 bytes each."""
    counts = LookupCounts()
    tracemalloc.start()
    for number in range(100_000):
        counts.add(Ino(number))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 1_000_000


def test_known_inodes_are_listed() -> None:
    """Known inodes of every page are listed."""
    counts = LookupCounts()
    for ino, times in ((1, 1), (255, 300), (256, 1), (100_000, 2)):
        counts.add(Ino(ino), times)
    counts.add(Ino(7))
    counts.forget(Ino(7), 1)

    assert sorted(counts.known()) == [1, 255, 256, 100_000]


def test_many_inodes_are_queried_at_once() -> None:
    """Which of them are known, and whether any of a range may be: page by page."""
    counts = LookupCounts()
    for ino in (5, 300, 100_000):
        counts.add(Ino(ino))

    assert counts.known_among(map(Ino, (4, 5, 299, 300, 70_000))) == {5, 300}
    assert counts.may_know_between(Ino(1), Ino(4))  # inodes 1 to 4 are on the same page as 5
    assert counts.may_know_between(Ino(90_000), Ino(200_000))
    assert not counts.may_know_between(Ino(1000), Ino(1001))
    assert not counts.may_know_between(Ino(1000), Ino(90_000))
