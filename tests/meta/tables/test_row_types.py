"""Checks of values in rows that came from outside."""

import pytest

from s3fs_meta.errors import BadRowError
from s3fs_meta.meta.tables.row_types import blob, require_location, require_numbers

GOOD = (1, 10, bytes(32), 2, 0, 20)
LOCAL = (1, 10, None, None, None, None)


@pytest.mark.parametrize("value", ["text", 5, 1.5, None])
def test_only_bytes_are_accepted_as_bytes(value: object) -> None:
    """bytes() of a number would be that many zeros."""
    assert blob(b"x", "a name", 7) == b"x"
    with pytest.raises(BadRowError, match="a name of inode 7"):
        blob(value, "a name", 7)


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("value", ["text", 1.5, -1])
def test_location_must_have_integers_and_a_hash(place: int, value: object) -> None:
    """A location must have integers and a hash, or be that of a local block."""
    require_location(GOOD, 7)
    require_location(LOCAL, 7)

    with pytest.raises(BadRowError):
        require_location((*GOOD[:place], value, *GOOD[place + 1 :]), 7)


@pytest.mark.parametrize("place", [2, 4, 5])
def test_half_of_a_location_is_refused(place: int) -> None:
    """A reader would ask a pack for bytes at no offset."""
    with pytest.raises(BadRowError):
        require_location((*GOOD[:place], None, *GOOD[place + 1 :]), 7)


@pytest.mark.parametrize("value", ["text", 1.5, b"", None])
def test_integers_are_required(value: object) -> None:
    """Checked for every value of every row."""
    assert require_numbers([(1, 2), (3, 4)], "the map", 7) == [(1, 2), (3, 4)]
    with pytest.raises(BadRowError):
        require_numbers([(1, 2), (3, value)], "the map", 7)
