"""The lock command, which makes a directory tree immutable."""

import errno
import json
import os

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.limits import FILE_BYTES_MAX
from tests.cli.conftest import Place
from tests.end_to_end.system_calls import refused
from tests.programs import Program

pytestmark = pytest.mark.mount


def test_locked_tree_cannot_be_changed(program: Program, mounted: Place) -> None:
    """A locked tree refuses changes with EPERM even after a remount; rm --locked removes it."""
    mnt = mounted.mountpoint
    (mnt / "tree" / "below").mkdir(parents=True)
    file = mnt / "tree" / "below" / "f"
    file.write_text("content")
    assert json.loads(program.ok("lock", "--json", mnt / "tree"))["entries"] == 3
    for _ in range(2):
        with refused(errno.EPERM):
            file.write_text("other")
        with refused(errno.EPERM):
            (mnt / "tree" / "new").touch()
        with refused(errno.EPERM):
            file.chmod(0o600)
        with refused(errno.EPERM):
            file.unlink()
        with refused(errno.EPERM):
            os.setxattr(file, "user.a", b"1")
        assert program.run("rm", mnt / "tree").returncode == ExitStatus.REQUEST
        assert file.read_text() == "content"
        program.ok("umount", mnt)
        program.ok("fsck", "-n", mounted.url)
        program.ok("mount", mounted.url, mnt)
    program.ok("rm", "--locked", mnt / "tree")
    assert os.listdir(mnt) == []


def test_refused_removal_of_a_part_of_a_locked_tree_names_the_remedy(
    program: Program, mounted: Place
) -> None:
    """A locked directory never loses a name, so rm --locked removes only complete locked trees."""
    (mounted.mountpoint / "tree" / "part").mkdir(parents=True)
    program.ok("lock", mounted.mountpoint / "tree")

    done = program.run("rm", "--locked", mounted.mountpoint / "tree" / "part")

    assert done.returncode == ExitStatus.REQUEST
    assert "the directory of 'part' is locked" in done.stderr
    assert "removes a locked tree only as a whole" in done.stderr


def test_lock_reports_that_a_file_could_not_be_written_back(program: Program, place: Place) -> None:
    """The error number of the other file would be misleading next to the path of the tree.

    The kernel reports the error to the first syncfs(2), which must not be that of the daemon.
    """
    program.ok("mount", "-o", "commit=300,sync_interval=1h", place.url, place.mountpoint)
    tree = place.mountpoint / "tree"
    tree.mkdir()
    fd = os.open(place.mountpoint / "large", os.O_WRONLY | os.O_CREAT)
    os.pwrite(fd, b"x", FILE_BYTES_MAX)
    with refused(errno.EFBIG):
        os.fsync(fd)  # wait until the write has failed
    done = program.run("lock", tree)
    os.ftruncate(fd, 0)
    os.close(fd)
    program.ok("umount", place.mountpoint)

    assert done.returncode == ExitStatus.LOCAL
    text = f"{tree}: the kernel could not write back all files of this filesystem: File too large"
    assert text in done.stderr
