"""Tests of file handles (name_to_handle_at(2)), which NFS servers use to identify files.

A handle contains an inode number, and a client keeps the handle while the daemon is restarted.
After the restart, the handle must open the same file or fail with ESTALE. No handle may open
another file.
"""

import ctypes
import errno
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from s3fs_meta.limits import MIB
from tests.cli.conftest import Place
from tests.end_to_end.hosts import host
from tests.end_to_end.system_calls import refused
from tests.programs import QuickProgram

pytestmark = [pytest.mark.mount, pytest.mark.usefixtures("as_root")]

_AT_FDCWD = -100
_HANDLE_BYTES_MAX = 128  # Linux defines this limit as MAX_HANDLE_SZ.

_libc = ctypes.CDLL(None, use_errno=True)


class _FileHandle(ctypes.Structure):
    """``struct file_handle`` of open_by_handle_at(2)."""

    _fields_ = (
        ("size_bytes", ctypes.c_uint),
        ("type", ctypes.c_int),
        ("content", ctypes.c_ubyte * _HANDLE_BYTES_MAX),
    )


class _Handle(NamedTuple):
    """A file handle, without the id of its mount."""

    type: int
    content: bytes

    @classmethod
    def of(cls, path: Path) -> "_Handle":
        """Return the handle of a file or directory."""
        found, mount_id = _FileHandle(_HANDLE_BYTES_MAX), ctypes.c_int()
        words = (os.fsencode(path), ctypes.byref(found), ctypes.byref(mount_id), 0)
        assert _libc.name_to_handle_at(_AT_FDCWD, *words) == 0, os.strerror(ctypes.get_errno())
        return cls(found.type, bytes(found.content[: found.size_bytes]))

    def open(self, mountpoint: Path, flags: int = os.O_RDONLY) -> int:
        """Open the file that a handle identifies on a mount.

        Raises: OSError: the mount has no such file.
        """
        content = (ctypes.c_ubyte * _HANDLE_BYTES_MAX)(*self.content)
        handle = _FileHandle(len(self.content), self.type, content)
        mount = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
        try:
            opened = int(_libc.open_by_handle_at(mount, ctypes.byref(handle), flags))
        finally:
            os.close(mount)
        if opened < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return opened

    def read(self, mountpoint: Path) -> bytes:
        """Return the content of the file that a handle identifies on a mount."""
        with os.fdopen(self.open(mountpoint), "rb") as file:
            return file.read()

    def path(self, mountpoint: Path) -> str:
        """Return the path of the directory that a handle identifies on a mount.

        The kernel finds the path with lookups of "..".
        """
        opened = self.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return os.readlink(f"/proc/self/fd/{opened}")
        finally:
            os.close(opened)


def _unmount(program: QuickProgram, place: Place) -> None:
    program.ok("umount", place.mountpoint)


def _kill(program: QuickProgram, place: Place) -> None:
    program.kill(place.mountpoint)


@pytest.mark.parametrize("end", [_unmount, _kill])
def test_file_handle_refers_to_the_same_file_after_a_restart(
    mounted: Place, program: QuickProgram, end: Callable[[QuickProgram, Place], None]
) -> None:
    tree = mounted.mountpoint / "a" / "b"
    tree.mkdir(parents=True)
    content = os.urandom(2 * MIB)
    (tree / "large").write_bytes(content)
    (tree / "small").write_bytes(b"Dear reader,")
    program.ok("flush", mounted.mountpoint)
    root, folder, large, small = map(
        _Handle.of, (mounted.mountpoint, tree, tree / "large", tree / "small")
    )
    (tree / "small").rename(mounted.mountpoint / "renamed")
    program.ok("flush", mounted.mountpoint)

    end(program, mounted)
    program.ok("mount", mounted.url, mounted.mountpoint)

    assert folder.path(mounted.mountpoint) == str(tree)
    assert root.path(mounted.mountpoint) == str(mounted.mountpoint)
    assert large.read(mounted.mountpoint) == content
    assert small.read(mounted.mountpoint) == b"Dear reader,"
    assert (_Handle.of(tree), _Handle.of(tree / "large")) == (folder, large)


def test_file_handle_of_a_removed_file_never_opens_another_file(
    mounted: Place, program: QuickProgram
) -> None:
    """The inode number of a removed file is never used again."""
    path = mounted.mountpoint / "f"
    path.write_bytes(b"removed")
    handle = _Handle.of(path)
    path.unlink()

    program.ok("umount", mounted.mountpoint)
    program.ok("mount", mounted.url, mounted.mountpoint)
    path.write_bytes(b"another")

    assert _Handle.of(path) != handle
    with refused(errno.ESTALE):
        handle.open(mounted.mountpoint)


def test_file_handle_does_not_open_a_file_that_was_created_after_a_rollback(
    mounted: Place, program: QuickProgram
) -> None:
    """A client whose handle is older than a rollback cannot write into a newer file."""
    (mounted.mountpoint / "kept").write_bytes(b"kept")
    txg = json.loads(program.ok("flush", mounted.mountpoint, "--json"))["txg"]
    lost = mounted.mountpoint / "lost"
    lost.write_bytes(b"of the dropped history")
    handle = _Handle.of(lost)
    program.ok("umount", mounted.mountpoint)
    program.ok("rollback", "--yes", "--at", f"txg={txg}", mounted.url)
    program.ok("mount", mounted.url, mounted.mountpoint)
    assert not lost.exists()

    lost.write_bytes(b"newer")

    assert _Handle.of(lost) != handle
    with refused(errno.ESTALE):
        handle.open(mounted.mountpoint)


def test_file_handle_opens_its_own_file_or_none_after_a_takeover(
    place: Place, program: QuickProgram, tmp_path: Path
) -> None:
    """After a takeover, a new file may have the inode number of a lost file, but not its handle."""
    other, elsewhere = QuickProgram(tmp_path / "other"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    program.ok("mount", "-o", "sync_interval=1h", place.url, place.mountpoint)
    (place.mountpoint / "shipped").write_bytes(b"Dear reader,")
    shipped = _Handle.of(place.mountpoint / "shipped")
    program.ok("flush", place.mountpoint)
    (place.mountpoint / "lost").write_bytes(b"lost")
    lost, number = _Handle.of(place.mountpoint / "lost"), (place.mountpoint / "lost").stat().st_ino
    _kill(program, place)
    subprocess.run(["umount", "-l", place.mountpoint], check=True)

    other.ok("mount", "--takeover", place.url, elsewhere)
    try:
        (elsewhere / "new").write_bytes(b"of another client")

        assert shipped.read(elsewhere) == b"Dear reader,"
        assert (elsewhere / "new").stat().st_ino == number
        with refused(errno.ESTALE):
            lost.open(elsewhere)
    finally:
        other.ok("umount", elsewhere)


def test_file_handle_of_the_writer_opens_the_file_on_a_follower(tmp_path: Path) -> None:
    url = f"local://{tmp_path}/bucket"
    QuickProgram(tmp_path / "state").ok("mkfs", "--plain", url)
    with (
        host(tmp_path, url, "writer", "rw") as writer,
        host(tmp_path, url, "follower", "ro,follow") as follower,
    ):
        (writer.mnt / "d").mkdir()
        (writer.mnt / "d" / "f").write_bytes(b"first")
        follower.wait_for(writer.ship())
        handle = _Handle.of(follower.mnt / "d" / "f")
        opened = handle.open(follower.mnt)
        (writer.mnt / "d" / "f").write_bytes(b"second")
        follower.wait_for(writer.ship())

        assert handle.read(follower.mnt) == os.pread(opened, 99, 0) == b"second"
        os.close(opened)
        follower.program.ok("umount", follower.mnt)
        follower.program.ok("mount", "-o", "ro,follow", url, follower.mnt)
        assert handle.read(follower.mnt) == b"second"


def test_file_handle_of_a_snapshot_file_is_refused_by_the_next_mount(
    mounted: Place, program: QuickProgram
) -> None:
    """Each mount assigns new inode numbers to files of the past, so older handles are refused."""
    path, past = mounted.mountpoint / "f", mounted.mountpoint / ".snapshots"
    path.write_bytes(b"first")
    program.ok("flush", mounted.mountpoint)
    path.write_bytes(b"second")
    program.ok("flush", mounted.mountpoint)
    handle = _Handle.of(past / "txg=2" / "f")
    assert handle.read(mounted.mountpoint) == b"first"

    program.ok("umount", mounted.mountpoint)
    program.ok("mount", mounted.url, mounted.mountpoint)
    assert (past / "txg=3" / "f").read_bytes() == b"second"
    with refused(errno.ESTALE):
        handle.open(mounted.mountpoint)


def test_file_handle_opens_a_snapshot_file_that_the_kernel_has_not_cached(
    mounted: Place, program: QuickProgram
) -> None:
    """The kernel looks up "." to open such a handle, and for a directory also ".."."""
    folder = mounted.mountpoint / "d"
    folder.mkdir()
    (folder / "f").write_bytes(b"first")
    txg = json.loads(program.ok("flush", mounted.mountpoint, "--json"))["txg"]
    past = mounted.mountpoint / ".snapshots" / f"txg={txg}"
    file, directory = _Handle.of(past / "d" / "f"), _Handle.of(past / "d")

    program.ok("umount", mounted.mountpoint)
    program.ok("mount", mounted.url, mounted.mountpoint)
    # The handles stay valid, because the first point in time that a mount opens always gets the
    # same inode numbers.
    past.stat()

    assert file.read(mounted.mountpoint) == b"first"
    assert directory.path(mounted.mountpoint) == str(past / "d")


def test_file_handle_of_the_snapshot_directory_is_refused_until_the_directory_is_accessed(
    mounted: Place, program: QuickProgram
) -> None:
    """The kernel searches the root for the directory's name, but no listing contains .snapshots."""
    past = mounted.mountpoint / ".snapshots"
    handle = _Handle.of(past)
    program.ok("umount", mounted.mountpoint)
    program.ok("mount", mounted.url, mounted.mountpoint)

    with refused(errno.ESTALE):
        handle.path(mounted.mountpoint)
    past.stat()
    assert handle.path(mounted.mountpoint) == str(past)
