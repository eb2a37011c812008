"""Tests with the kernel of what docs/design/semantics.md says about unsupported calls."""

import ctypes
import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from s3fs_meta.fs import acl
from tests.cli.conftest import Place
from tests.programs import Program

pytestmark = pytest.mark.mount

_libc = ctypes.CDLL(None, use_errno=True)
_COLLAPSE_RANGE = 8
_FICLONE = 0x40049409
_UNKNOWN_COMMAND = 0x8008667F
_PAGE = 4096


def _checked(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _fallocate(path: Path, mode: int) -> None:
    with path.open("r+b") as file:
        length = ctypes.c_longlong(_PAGE)
        _checked(_libc.fallocate(file.fileno(), mode, ctypes.c_longlong(0), length))


def _ioctl(path: Path, number: int, argument: int | bytes) -> None:
    with path.open("r+b") as file:
        fcntl.ioctl(file.fileno(), number, argument)


def _clone(path: Path) -> None:
    with path.with_name("target").open("wb") as target, path.open("rb") as source:
        fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())


def _attribute_of_link(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to("f")
    os.setxattr(link, "user.a", b"", follow_symlinks=False)


def _acl_of_512_entries(path: Path) -> None:
    """Set an ACL of 511 entries, which must succeed, and an ACL of 512 entries."""
    for users in (507, 508):
        named = [acl.AclEntry(acl.USER, 7, 1000 + user) for user in range(users)]
        rest = [acl.AclEntry(tag, 7) for tag in (acl.GROUP_OBJ, acl.MASK, acl.OTHER)]
        entries = [acl.AclEntry(acl.USER_OBJ, 7), *named, *rest]
        os.setxattr(path, acl.ACCESS.decode(), acl.encode(entries))


_REFUSED: Mapping[str, tuple[Callable[[Path], None], int]] = {
    "fallocate, collapsing": (lambda path: _fallocate(path, _COLLAPSE_RANGE), errno.EOPNOTSUPP),
    "FICLONE": (_clone, errno.EOPNOTSUPP),
    "another ioctl": (lambda path: _ioctl(path, _UNKNOWN_COMMAND, bytes(8)), errno.ENOTTY),
    "other namespace": (lambda path: os.setxattr(path, "system.other", b""), errno.EOPNOTSUPP),
    "attribute of a link": (_attribute_of_link, errno.EPERM),
    "large ACL": (_acl_of_512_entries, errno.E2BIG),
    "link to a directory": (
        lambda path: os.link(path.parent, path.with_name("second")),
        errno.EPERM,
    ),
}


def test_refused_system_calls_fail_with_the_documented_errno(mounted: Place) -> None:
    """Calls in the table "Refused, and what happens instead" fail with the errno of their row."""
    path = mounted.mountpoint / "f"
    path.write_bytes(b"x")
    answers: dict[str, int | None] = dict.fromkeys(_REFUSED)
    for name, (call, _) in _REFUSED.items():
        try:
            call(path)
        except OSError as exc:
            answers[name] = exc.errno

    assert answers == {name: code for name, (_, code) in _REFUSED.items()}


def test_syncfs_on_the_mount_succeeds(mounted: Place) -> None:
    path = mounted.mountpoint / "f"
    path.write_bytes(b"content")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _checked(_libc.syncfs(descriptor))
    finally:
        os.close(descriptor)


def test_file_locks_exclude_each_other_on_one_host(mounted: Place) -> None:
    """If a process has locked a file with flock(2) or fcntl(2), a second lock is refused."""
    path = mounted.mountpoint / "f"
    with path.open("wb") as one, path.open("r+b") as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    refused = (
        "import fcntl, sys; file = open(sys.argv[1], 'r+b')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: print('refused')"
    )
    with path.open("r+b") as one:
        fcntl.lockf(one, fcntl.LOCK_EX)
        done = subprocess.run(
            [sys.executable, "-c", refused, path], capture_output=True, text=True, check=True
        )
    assert done.stdout == "refused\n"


def test_use_of_a_fifo_does_not_change_its_times(mounted: Place) -> None:
    path = mounted.mountpoint / "fifo"
    os.mkfifo(path)
    os.utime(path, ns=(1, 1))
    fifo = os.open(path, os.O_RDWR)
    os.write(fifo, b"x")
    os.read(fifo, 1)
    os.close(fifo)

    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (1, 1)


def test_reads_from_the_page_cache_do_not_change_atime(place: Place, program: Program) -> None:
    program.ok("mount", "-o", "strictatime", place.url, place.mountpoint)
    path = place.mountpoint / "f"
    path.write_bytes(b"content")
    before = path.stat().st_atime_ns

    path.read_bytes()

    assert path.stat().st_atime_ns == before
    program.ok("umount", place.mountpoint)


def _modes_under_a_default_acl(folder: Path) -> tuple[int, int]:
    """Create files with mode 0666 and umask 022; return their modes without and with an ACL."""
    everything = [acl.AclEntry(tag, 7) for tag in (acl.USER_OBJ, acl.GROUP_OBJ, acl.OTHER)]
    before = os.umask(0o022)
    try:
        (folder / "f").touch(mode=0o666)
        os.setxattr(folder, acl.DEFAULT.decode(), acl.encode(everything))
        (folder / "g").touch(mode=0o666)
    finally:
        os.umask(before)
    return (folder / "f").stat().st_mode & 0o777, (folder / "g").stat().st_mode & 0o777


def test_default_acl_replaces_the_umask(mounted: Place) -> None:
    """If a directory has a default ACL, the umask is ignored, as on other local filesystems."""
    assert _modes_under_a_default_acl(mounted.mountpoint) == (0o644, 0o666)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may remount with the helper of mount(8)")
def test_remount_refuses_to_change_options_other_than_ro_and_rw(
    mounted: Place, program: Program
) -> None:
    """A remount with other options is refused with advice, and the mount continues."""
    refused = program.run(
        mounted.url,
        mounted.mountpoint,
        "-o",
        f"remount,ro,commit=3,cachedir={program.cachedir}",
        module="s3fs_meta.cli.mount_helper",
        here=False,
    )

    assert refused.returncode == 1
    assert "unmount and mount again" in refused.stderr
    (mounted.mountpoint / "f").write_bytes(b"goes on")


def test_duplicate_content_and_zeros_use_no_space_in_the_bucket(
    mounted: Place, program: Program
) -> None:
    """Equal content of several files is stored once, and zeros are not stored."""
    path = mounted.mountpoint / "f"
    path.write_bytes(os.urandom(1 << 20))
    (mounted.mountpoint / "zeros").write_bytes(bytes(4 << 20))
    strict = ["cp", "--reflink=always", str(path), str(path.with_name("g"))]
    assert subprocess.run(strict, capture_output=True, check=False).returncode != 0
    path.with_name("g").unlink(missing_ok=True)
    subprocess.run(["cp", path, path.with_name("h")], check=True)
    program.ok("flush", mounted.mountpoint)

    figures = program.status(mounted.mountpoint)

    assert (figures["file_bytes"], figures["block_bytes"]) == (6 << 20, 1 << 20)
