"""Tests of how error messages display file names and attribute names."""

import pytest

from s3fs_meta.errors import EntryExistsError, NoAttributeError, NoEntryError, S3fsError


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NoEntryError(1, b"letter"), "no entry 'letter' in directory 1"),
        (EntryExistsError(1, "Füße".encode()), "entry 'Füße' exists in directory 1"),
        (NoAttributeError(7, b"user.a"), "inode 7 has no attribute 'user.a'"),
        (NoEntryError(1, b"\xff"), r"no entry b'\xff' in directory 1"),
    ],
)
def test_error_shows_a_name_as_bytes_only_if_it_is_not_utf8(error: S3fsError, message: str) -> None:
    assert error.message == message
