"""How values of options are written."""

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.option_syntax import nearest, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("512", 512), ("4K", 4096), ("1.5M", 3 << 19), ("2GiB", 2 << 30), ("1t", 1 << 40)],
)
def test_sizes_have_binary_units(text: str, expected: int) -> None:
    """K, M, G and T are powers of 1024, in either case, with or without iB."""
    assert parse_size("x", text) == expected


@pytest.mark.parametrize("text", ["", "-1", "K", "1X", "1 2", "0x10", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(UsageError, match="is not a size"):
        parse_size("x", text)


def test_nearest_says_nothing_when_nothing_is_near() -> None:
    """A far-fetched question would only confuse."""
    assert nearest("qqq", ["journal_mode"]) == ""
    assert nearest("Comit", ["commit"]) == "; did you mean 'commit'?"
