"""Type checks of values in rows that come from the bucket."""

import pytest

from s3fs_meta.errors import BadRowError
from s3fs_meta.meta.tables.row_types import blob, require_location, require_numbers

GOOD = (1, 10, bytes(32), 2, 0, 20)
LOCAL = (1, 10, None, None, None, None)


@pytest.mark.parametrize("value", ["text", 5, 1.5, None])
def test_value_of_a_type_other_than_bytes_is_refused(value: object) -> None:
    """An integer is refused, because bytes(n) would return n zeros."""
    assert blob(b"x", "a name", 7) == b"x"
    with pytest.raises(BadRowError, match="a name of inode 7"):
        blob(value, "a name", 7)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("value", ["text", 1.5, -1])
def test_location_of_a_block_must_contain_integers_and_a_hash(place: int, value: object) -> None:
    """A block without a pack has neither a hash nor an offset or length."""
    require_location(GOOD, 7)
    require_location(LOCAL, 7)

    with pytest.raises(BadRowError):
        require_location((*GOOD[:place], value, *GOOD[place + 1 :]), 7)


@pytest.mark.parametrize("place", [2, 4, 5])
def test_incomplete_location_of_a_block_is_refused(place: int) -> None:
    """A location is complete, with pack, offset and length, or it is absent."""
    with pytest.raises(BadRowError):
        require_location((*GOOD[:place], None, *GOOD[place + 1 :]), 7)


@pytest.mark.parametrize("value", ["text", 1.5, b"", None])
def test_row_with_a_value_that_is_not_an_integer_is_refused(value: object) -> None:
    assert require_numbers([(1, 2), (3, 4)], "the map", 7) == [(1, 2), (3, 4)]
    with pytest.raises(BadRowError):
        require_numbers([(1, 2), (3, value)], "the map", 7)
