"""Tests of escaping text that is printed on a terminal."""

import os

import pytest

from s3fs_meta.console.printable import printable, user_name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Größe 5 µs – ok", "Größe 5 µs – ok"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("title\x1b]0;x\x07", r"title\x1b]0;x\x07"),
        ("c1\x9b31m", r"c1\x9b31m"),
        ("back\b\rspace", r"back\x08\rspace"),
        ("\u202eright to left", r"\u202eright to left"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        (os.fsdecode(b"\xff\x1b"), r"\xff\x1b"),
        (f"directory {os.fsdecode(bytes([255, 254]))!r}", r"directory '\xff\xfe'"),
        (repr(r"a name with \udcff"), repr(r"a name with \udcff")),
    ],
)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_user_without_a_name_is_shown_as_a_number() -> None:
    assert user_name(0) == "root"
    assert user_name(4_000_000_000) == "4000000000"
