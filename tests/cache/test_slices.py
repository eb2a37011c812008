"""Splitting a long list into slices that are processed one at a time."""

from s3fs_meta.cache.slices import slices


def test_slices_contain_every_item_once_and_in_order() -> None:
    assert [list(piece) for piece in slices([1, 2, 3, 4, 5], 2)] == [[1, 2], [3, 4], [5]]
    assert list(slices([], 2)) == []
