"""Tests of the errors of requests that would change the past."""

import errno

import pytest

from s3fs_meta.errors import (
    DatabaseError,
    NoAttributeError,
    NoEntryError,
    NoInodeError,
    NoSpaceLeftError,
    S3fsError,
    TooBigError,
)
from s3fs_meta.fuse.past_requests import errno_of
from s3fs_meta.limits import PAST_INO_MIN

PAST, OTHER, NOW = PAST_INO_MIN + 5, PAST_INO_MIN + 6, 7


@pytest.mark.parametrize(
    ("name", "arguments", "exc", "expected"),
    [
        ("mkdir", (PAST, b"d", 0o755), NoInodeError(PAST), errno.EROFS),
        ("unlink", (PAST, b"f"), NoEntryError(PAST, b"f"), errno.EROFS),
        ("write", (PAST, 0, b"x"), NoInodeError(PAST), errno.EROFS),
        ("rename", (PAST, b"f", NOW, b"g", 0), NoEntryError(PAST, b"f"), errno.EXDEV),
        ("rename", (NOW, b"f", PAST, b"g", 0), NoInodeError(PAST), errno.EXDEV),
        ("rename", (PAST, b"f", OTHER, b"g", 0), NoEntryError(PAST, b"f"), errno.EROFS),
        ("link", (PAST, NOW, b"f"), NoInodeError(PAST), errno.EXDEV),
        ("copy_file_range", (NOW,), NoInodeError(PAST), errno.EXDEV),
        ("flags", (PAST,), NoInodeError(PAST), errno.ENOTTY),
        ("getxattr", (PAST, b"user.x"), NoAttributeError(PAST, b"user.x"), None),
        ("unlink", (NOW, b"f"), NoEntryError(NOW, b"f"), None),
        ("write", (NOW, 0, b"x"), NoInodeError(NOW), None),
        ("write", (PAST, 0, b"x"), DatabaseError("full"), None),
        ("write", (NOW, PAST_INO_MIN, b"x"), TooBigError(NOW, PAST_INO_MIN), None),
        ("fallocate", (NOW, 0, PAST_INO_MIN, 1), NoSpaceLeftError("full"), None),
        ("rename", (NOW, b"f", NOW, b"g", PAST_INO_MIN), NoEntryError(NOW, b"f"), None),
    ],
)
def test_request_to_change_a_past_file_fails_with_the_documented_errno(
    name: str, arguments: tuple[object, ...], exc: S3fsError, expected: int | None
) -> None:
    assert errno_of(name, arguments, exc) == expected
