"""Tests of the table of errnos."""

import errno

import pytest

from s3fs_meta import bucket_errors, errors, mount_errors
from s3fs_meta.errors import S3fsError
from s3fs_meta.fuse import errnos


def _leaves(kind: type[S3fsError]) -> list[type[S3fsError]]:
    below = kind.__subclasses__()
    return [leaf for child in below for leaf in _leaves(child)] if below else [kind]


def test_error_classes_of_every_module_are_tested() -> None:
    leaves = _leaves(S3fsError)
    assert {errors.NoEntryError, bucket_errors.NoImageError, mount_errors.InUseError} <= {*leaves}


@pytest.mark.parametrize("leaf", _leaves(S3fsError), ids=lambda leaf: leaf.__name__)
def test_every_specific_error_class_has_an_errno(leaf: type[S3fsError]) -> None:
    assert any(kind in errnos.ERRNOS for kind in leaf.__mro__)


@pytest.mark.parametrize("leaf", _leaves(errors.FsError), ids=lambda leaf: leaf.__name__)
def test_every_error_of_a_request_has_an_entry_in_the_errno_table(leaf: type[S3fsError]) -> None:
    assert leaf in errnos.ERRNOS


def test_error_class_without_an_entry_uses_the_errno_of_its_base_class() -> None:
    assert errnos.errno_of(errors.NoEntryError(1, b"x")) == errno.ENOENT
    assert errnos.errno_of(errors.LostBlockError(1, "gone")) == errno.EIO
    assert errnos.errno_of(errors.ObjectMissingError("pack/1")) == errno.EIO


def test_error_class_without_any_entry_is_reported_as_eio() -> None:
    """An error without an errno entry is reported as EIO, and never as success."""
    assert errnos.errno_of(S3fsError("odd")) == errno.EIO
