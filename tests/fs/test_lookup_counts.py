"""Tests of lookup counts of inodes, which are stored compactly."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3fs_meta.fs.lookup_counts import LookupCounts
from s3fs_meta.model import Ino


def test_lookup_count_of_an_unknown_inode_is_zero() -> None:
    assert LookupCounts().count(Ino(1)) == 0


@pytest.mark.parametrize("times", [1, 254, 255, 256, 1000])
def test_page_of_lookup_counts_is_freed_when_all_its_inodes_are_forgotten(times: int) -> None:
    """A page of counts is freed when all its inodes are forgotten, even if counts exceeded 254."""
    counts = LookupCounts()
    for _ in range(times):
        counts.add(Ino(77))
    assert counts.count(Ino(77)) == times
    assert counts.forget(Ino(77), times) == 0
    assert counts.pages == 0


def test_lookup_count_is_correct_after_it_decreased_below_255() -> None:
    counts = LookupCounts()
    counts.add(Ino(5), 300)
    assert counts.forget(Ino(5), 100) == 200
    counts.add(Ino(5))
    assert counts.count(Ino(5)) == 201


def test_lookup_count_never_becomes_negative() -> None:
    counts = LookupCounts()
    counts.add(Ino(5))
    assert counts.forget(Ino(5), 9) == 0
    assert counts.forget(Ino(5), 9) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 600), st.integers(1, 400)), max_size=60))
def test_lookup_counts_equal_those_in_a_plain_dictionary(
    steps: list[tuple[bool, int, int]],
) -> None:
    """Lookup counts equal those in a dictionary after any sequence of lookups and forgets."""
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


def test_lookup_counts_of_100000_inodes_use_less_than_a_megabyte() -> None:
    counts = LookupCounts()
    tracemalloc.start()
    for number in range(100_000):
        counts.add(Ino(number))
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken < 1_000_000


def test_all_inodes_with_a_lookup_count_are_listed() -> None:
    """The list contains all looked-up inodes except forgotten ones."""
    counts = LookupCounts()
    for ino, times in ((1, 1), (255, 300), (256, 1), (100_000, 2)):
        counts.add(Ino(ino), times)
    counts.add(Ino(7))
    counts.forget(Ino(7), 1)

    assert sorted(counts.known()) == [1, 255, 256, 100_000]


def test_inodes_with_a_lookup_count_are_found_in_a_set_or_range() -> None:
    """A query returns the known inodes of a set, or whether a range may contain a known inode."""
    counts = LookupCounts()
    for ino in (5, 300, 100_000):
        counts.add(Ino(ino))

    assert counts.known_among(map(Ino, (4, 5, 299, 300, 70_000))) == {5, 300}
    assert counts.may_know_between(Ino(1), Ino(4))  # Inodes 1 to 5 share one page.
    assert counts.may_know_between(Ino(90_000), Ino(200_000))
    assert not counts.may_know_between(Ino(1000), Ino(1001))
    assert not counts.may_know_between(Ino(1000), Ino(90_000))
