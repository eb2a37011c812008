"""Splitting long work into slices, so that other tasks can run between the slices."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from s3fs_meta.limits import LOOP_SLICE_ROWS

_Item = TypeVar("_Item")


def slices(items: Sequence[_Item], size: int = LOOP_SLICE_ROWS) -> Iterator[Sequence[_Item]]:
    """Yield slices of the items, in order, with at most *size* items each."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
