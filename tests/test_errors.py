"""Tests of how error messages display the names of files and attributes, and commands."""

import pytest

from s3fs_meta.errors import (
    BeingRemovedError,
    EntryExistsError,
    FencedError,
    NoAttributeError,
    NoEntryError,
    NotAFilesystemError,
    S3fsError,
)
from s3fs_meta.mount_errors import EarlierMountInUseError, InUseError


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


@pytest.mark.parametrize(
    ("error", "command"),
    [(NotAFilesystemError, "mkfs"), (BeingRemovedError, "destroy")],
)
def test_command_in_an_error_quotes_a_url_with_spaces(
    error: type[NotAFilesystemError | BeingRemovedError], command: str
) -> None:
    message = error("local:///my data").message

    assert f"s3fs-meta {command} 'local:///my data'" in message


@pytest.mark.parametrize("error", [EarlierMountInUseError, InUseError])
def test_command_in_an_error_quotes_a_mountpoint_with_spaces(
    error: type[EarlierMountInUseError | InUseError],
) -> None:
    assert "umount --force '/mnt/my files'" in error("by ls (7)", "/mnt/my files").message


@pytest.mark.parametrize(
    ("their_epoch", "text"),
    [
        (6, "epoch 5 was replaced by epoch 6, held by web2"),
        (5, "the writer of epoch 5 on this host was replaced by web2"),
    ],
)
def test_error_of_a_fenced_writer_names_the_other_epoch_only_if_it_differs(
    their_epoch: int, text: str
) -> None:
    assert FencedError(5, their_epoch, "web2").message == text
