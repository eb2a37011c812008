"""Tests of the error of a failed mount, which quotes messages of libfuse."""

import os
from pathlib import Path

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.mount.libfuse_messages import quoting_libfuse


def test_error_of_a_failed_mount_quotes_the_message_of_libfuse(tmp_path: Path) -> None:
    """The error of a refused mount contains the message that libfuse wrote to the daemon's log.

    Messages of earlier mounts in the log are not quoted.
    """
    log = tmp_path / "mount.log"
    log.write_text("fuse: of an earlier mount\n")

    def refuse() -> None:
        with quoting_libfuse(log):
            with log.open("a") as file:
                file.write("INFO other\nfusermount3: failed to open /dev/fuse\n")
            raise UsageError("cannot mount")

    with pytest.raises(UsageError, match=r"^cannot mount; fusermount3: failed to open /dev/fuse$"):
        refuse()


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("fuse: failed to open /dev/fuse: Permission denied", "chmod 666 /dev/fuse"),
        (
            "fuse: failed to exec fusermount3: No such file or directory",
            "install the package fuse3",
        ),
    ],
)
def test_error_of_a_failed_mount_mentions_the_fuse_device_and_fusermount3(
    tmp_path: Path, written: str, advice: str
) -> None:
    log = tmp_path / "mount.log"

    def refuse() -> None:
        with quoting_libfuse(log):
            log.write_text(written)
            raise UsageError("cannot mount")

    with pytest.raises(UsageError, match=f"{advice}$"):
        refuse()


@pytest.mark.timeout(30)
def test_log_that_is_a_fifo_does_not_block_the_error_of_a_failed_mount(tmp_path: Path) -> None:
    """A mount in the foreground does not open the log before."""
    log = tmp_path / "mount.log"
    os.mkfifo(log)

    with pytest.raises(UsageError, match=r"^cannot mount$"), quoting_libfuse(log):
        raise UsageError("cannot mount")
