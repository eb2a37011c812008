"""The table of errnos."""

import errno

import pytest

from s3fs_meta import errors
from s3fs_meta.errors import S3fsError
from s3fs_meta.fuse import errnos


def _leaves(kind: type[S3fsError]) -> list[type[S3fsError]]:
    below = kind.__subclasses__()
    return [leaf for child in below for leaf in _leaves(child)] if below else [kind]


@pytest.mark.parametrize("leaf", _leaves(S3fsError), ids=lambda leaf: leaf.__name__)
def test_every_leaf_class_has_an_errno(leaf: type[S3fsError]) -> None:
    """An error class without an errno is a gap in the table."""
    assert any(kind in errnos.ERRNOS for kind in leaf.__mro__)


@pytest.mark.parametrize("leaf", _leaves(errors.FsError), ids=lambda leaf: leaf.__name__)
def test_every_request_error_is_listed(leaf: type[S3fsError]) -> None:
    """Errors that a request can raise are listed one by one."""
    assert leaf in errnos.ERRNOS


def test_errno_comes_from_the_nearest_listed_class() -> None:
    """Classes with one base may share an errno."""
    assert errnos.errno_of(errors.NoEntryError(1, b"x")) == errno.ENOENT
    assert errnos.errno_of(errors.LostBlockError(1, "gone")) == errno.EIO
    assert errnos.errno_of(errors.ObjectMissingError("pack/1")) == errno.EIO


def test_unlisted_error_is_eio() -> None:
    """No error counts as success."""
    assert errnos.errno_of(S3fsError("odd")) == errno.EIO
