"""The parts of one mount, and their options."""

import os
import subprocess
from pathlib import Path

import pytest

from s3fs_meta.errors import UsageError
from s3fs_meta.mount.service import _libfuse_heard, supplementary_groups
from tests.cli.conftest import Place
from tests.programs import Program


def test_groups_of_a_process_equal_getgroups() -> None:
    assert supplementary_groups(os.getpid()) == frozenset(os.getgroups())


def test_ended_process_has_no_groups() -> None:
    """A process may exit between its request and the search for its groups."""
    assert supplementary_groups(2**22 + 1) == frozenset()


def test_refused_mount_quotes_the_message_of_libfuse(tmp_path: Path) -> None:
    """The error of a refused mount has the message that libfuse wrote to the daemon's log.

    Messages of earlier mounts are not quoted.
    """
    log = tmp_path / "mount.log"
    log.write_text("fuse: of an earlier mount\n")

    def refuse() -> None:
        with _libfuse_heard(log):
            with log.open("a") as file:
                file.write("INFO other\nfusermount3: failed to open /dev/fuse\n")
            raise UsageError("cannot mount")

    with pytest.raises(UsageError, match=r"^cannot mount; fusermount3: failed to open /dev/fuse$"):
        refuse()


@pytest.mark.mount
def test_mount_applies_its_options(program: Program, place: Place) -> None:
    """Capacity, owner and mode apply; the control socket exists during the mount."""
    options = "capacity=1G,uid=12,gid=13,umask=027"
    program.ok("mount", "-o", options, place.url, place.mountpoint)
    (place.mountpoint / "f").touch()

    shown = (place.mountpoint / "f").stat()
    space = os.statvfs(place.mountpoint)

    assert (shown.st_uid, shown.st_gid, shown.st_mode & 0o777) == (12, 13, 0o640)
    assert space.f_blocks * space.f_frsize == 1 << 30
    assert list(program.cachedir.glob("*/control.sock"))
    program.ok("umount", place.mountpoint)
    assert not list(program.cachedir.glob("*/control.sock"))


@pytest.mark.mount
def test_new_mount_waits_for_the_upload_of_the_previous_daemon(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """A mount after fusermount3 -u waits for the daemon, and then continues in the next epoch."""
    (mounted.mountpoint / "f").write_bytes(os.urandom(20_000_000))
    (tmp_path / "again").mkdir()
    subprocess.run(["fusermount3", "-u", mounted.mountpoint], check=True)

    program.ok("mount", mounted.url, tmp_path / "again")

    assert (tmp_path / "again" / "f").stat().st_size == 20_000_000
    assert program.status(tmp_path / "again")["epoch"] == 2
    program.ok("umount", tmp_path / "again")
