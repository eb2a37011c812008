"""Tests of numbers in messages, which are followed by a singular or plural noun."""

from s3fs_meta.counted import counted


def test_counted_noun_is_plural_unless_the_number_is_one() -> None:
    assert [counted(number, "block file") for number in (0, 1, 2)] == [
        "0 block files",
        "1 block file",
        "2 block files",
    ]
    assert [counted(number, "entry") for number in (1, 2)] == ["1 entry", "2 entries"]
