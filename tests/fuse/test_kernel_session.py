"""Tests of real mounts: mount options, system calls and signals."""

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from s3fs_meta.errors import UsageError
from s3fs_meta.fuse import kernel_session
from s3fs_meta.fuse.kernel_session import FuseOptions, serve
from s3fs_meta.limits import KERNEL_READAHEAD_KIB
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.mount.existing import targets
from tests.fuse.conftest import BLOCK_BYTES, Mounted, opened, until_ready
from tests.polling import WAIT_S_MAX

CONTENT = os.urandom(3 * BLOCK_BYTES + 100)


def test_mount_options_let_the_kernel_check_permissions() -> None:
    """The default options of a mount contain default_permissions."""
    words = FuseOptions(source="s3://bucket/a,b é").fuse_options()
    assert words == {
        "default_permissions",
        "fsname=s3://bucket/a%2Cb%20%C3%A9",
        "subtype=s3fs-meta",
        "rw",
        "nodev",
        "nosuid",
        "exec",
    }
    chosen = FuseOptions(source="x", read_only=True, allow_other=True, nodev=False, nosuid=False)
    assert {"ro", "allow_other", "dev", "suid"} < chosen.fuse_options()


@pytest.mark.parametrize("url", ["local:///a%20b", "local:///50% of", "s3://bucket/%2C,%"])
def test_url_with_percent_signs_is_read_back_unchanged_from_the_mount_table(url: str) -> None:
    """A URL may contain percent signs, which are no escapes."""
    [word] = [one for one in FuseOptions(source=url).fuse_options() if one.startswith("fsname=")]

    assert targets.unquoted(word.removeprefix("fsname=")) == url


def test_request_to_end_a_session_that_does_not_run_has_no_effect() -> None:
    """A control request may arrive before the session exists, or after it has ended."""
    code = "from s3fs_meta.fuse import kernel_session; kernel_session.end()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("minor", [0, 42, 255, 256, 300, 0xFFFFF])
def test_directory_in_fusectl_has_the_minor_number_of_the_mount(minor: int) -> None:
    """From 256 on, the minor number differs from the number that stat(2) returns."""
    directory = Path("/sys/fs/fuse/connections")
    assert kernel_session.connection(os.makedev(0, minor)) == directory / str(minor)


def walk_names(root: Path) -> None:
    """Create, move, link and remove names."""
    (root / "d").mkdir()
    (root / "d/f").write_bytes(CONTENT)
    os.link(root / "d/f", root / "g")
    os.symlink("d/f", root / "l")
    os.rename(root / "d/f", root / "d/h")
    assert os.readlink(root / "l") == "d/f"
    assert sorted(os.listdir(root)) == ["d", "g", "l"]
    assert os.stat(root / "g").st_nlink == 2
    assert (root / "d").stat().st_nlink == 2
    with pytest.raises(OSError, match="not empty"):
        os.rmdir(root / "d")
    os.unlink(root / "d/h")
    os.rmdir(root / "d")
    assert (root / "g").read_bytes() == CONTENT
    assert (root / "g").stat().st_nlink == 1
    with pytest.raises(FileNotFoundError):
        os.stat(root / "d")
    with pytest.raises(OSError, match="too long"):
        os.stat(root / ("n" * 256))


def walk_content(root: Path) -> None:
    """Write, read, truncate and extend a file."""
    with open(root / "f", "wb+") as file:
        file.write(CONTENT)
        os.fsync(file.fileno())
        assert os.pread(file.fileno(), 10, BLOCK_BYTES - 5) == CONTENT[BLOCK_BYTES - 5 :][:10]
        os.truncate(root / "f", BLOCK_BYTES + 1)
        os.ftruncate(file.fileno(), 2 * BLOCK_BYTES)
    assert (root / "f").read_bytes() == CONTENT[: BLOCK_BYTES + 1] + bytes(BLOCK_BYTES - 1)
    assert (root / "f").stat().st_blocks * 512 == 2 * BLOCK_BYTES
    with open(root / "f", "ab") as file:
        file.write(b"end")
    with open(root / "f", "r+b") as file:
        assert file.read()[-3:] == b"end"
    os.truncate(root / "f", 16 << 40)
    assert (root / "f").stat().st_size == 16 << 40
    descriptor = os.open(root, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def walk_attributes(root: Path) -> None:
    """Use chmod, chown, utimensat, extended attributes and statfs."""
    file = root / "f"
    file.touch()
    os.chmod(file, 0o4711)
    os.chown(file, 12, 34)
    row = file.stat()
    assert (row.st_uid, row.st_gid, stat.S_IMODE(row.st_mode)) == (12, 34, 0o711)
    os.utime(file, ns=(1_000_000_001, 2_000_000_002))
    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (1_000_000_001, 2_000_000_002)
    os.setxattr(file, "user.a", b"1", os.XATTR_CREATE)
    with pytest.raises(FileExistsError):
        os.setxattr(file, "user.a", b"2", os.XATTR_CREATE)
    with pytest.raises(OSError, match="No data") as caught:
        os.setxattr(file, "user.b", b"2", os.XATTR_REPLACE)
    assert caught.value.errno == errno.ENODATA
    os.setxattr(file, "user.a", b"3", os.XATTR_REPLACE)
    assert (os.listxattr(file), os.getxattr(file, "user.a")) == (["user.a"], b"3")
    os.removexattr(file, "user.a")
    assert os.listxattr(file) == []
    assert os.statvfs(root).f_namemax == 255


def walk_orphans(root: Path) -> None:
    """Use a file that was unlinked while it was open."""
    with open(root / "f", "wb+") as file:
        file.write(b"content")
        os.unlink(root / "f")
        file.flush()
        assert os.fstat(file.fileno()).st_nlink == 0
        assert os.pread(file.fileno(), 99, 0) == b"content"
    assert os.listdir(root) == []


@pytest.mark.mount
@pytest.mark.parametrize("walk", [walk_names, walk_content, walk_attributes, walk_orphans])
async def test_system_calls_work_on_a_mount(mounted: Mounted, walk: Callable[[Path], None]) -> None:
    """A sequence of system calls succeeds and leaves the mount writable."""
    await mounted.run(walk, mounted.path)
    assert mounted.handlers.session.status.writable


def write_and_count_blocks(path: Path) -> list[int]:
    """Write a file; return its number of blocks after each fsync."""
    counted = []
    with open(path, "wb", buffering=0) as file:
        for _ in range(3):
            file.write(bytes(BLOCK_BYTES))
            os.fsync(file.fileno())
            counted.append(os.fstat(file.fileno()).st_blocks)
    return counted


@pytest.mark.mount
async def test_block_count_of_a_file_is_correct_after_fsync(mounted: Mounted) -> None:
    """The attribute st_blocks is current after fsync, although the kernel caches attributes."""
    counted = await mounted.run(write_and_count_blocks, mounted.path / "f")
    assert counted == [blocks * BLOCK_BYTES // 512 for blocks in (1, 2, 3)]


def mounts() -> str:
    """Return the mount table of this process."""
    return Path("/proc/self/mounts").read_text(encoding="utf-8")


def mode_after(root: Path, command: str) -> int:
    """Return the mode of a file with all privilege bits after a command of another user."""
    (root / "f").touch()
    (root / "f").chmod(0o6777)
    root.chmod(0o755)
    # The child enters the directory as root, because the other user may not search its parents.
    subprocess.run(
        ["/bin/sh", "-c", command], check=True, cwd=root, user=65534, group=65534, extra_groups=[]
    )
    return stat.S_IMODE((root / "f").stat().st_mode)


@pytest.mark.mount
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_write_by_an_unprivileged_user_clears_privilege_bits(mounted: Mounted) -> None:
    """Suid and sgid are cleared before write(2), and when O_TRUNC truncates a file."""
    assert await mounted.run(mode_after, mounted.path, "printf x >> f") == 0o777
    assert await mounted.run(mode_after, mounted.path, ": > f") == 0o777


@pytest.mark.mount
async def test_kernel_truncates_an_opened_file_by_a_separate_request(mounted: Mounted) -> None:
    """With a separate SETATTR request, the kernel drops the file's pages under the inode lock."""
    path, requests = mounted.path / "f", mounted.handlers.operations.requests
    await mounted.run(path.write_bytes, b"content")
    before = requests["setattr"]

    fd = await mounted.run(os.open, path, os.O_RDWR | os.O_TRUNC)
    after = requests["setattr"]
    await mounted.run(os.close, fd)

    assert after == before + 1


@pytest.mark.mount
async def test_truncation_to_the_same_size_changes_no_time(mounted: Mounted) -> None:
    path, fs = mounted.path / "f", mounted.handlers.fs
    await mounted.run(path.write_bytes, b"content")
    shown = await mounted.run(path.stat)
    await mounted.run(os.truncate, path, 7)
    stored = fs.getattr(Ino(shown.st_ino))
    after = await mounted.run(path.stat)
    assert (after.st_mtime_ns, after.st_ctime_ns) == (shown.st_mtime_ns, shown.st_ctime_ns)
    assert (stored.mtime_ns, stored.ctime_ns) == (shown.st_mtime_ns, shown.st_ctime_ns)


_HOLD = """
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(sys.stdin.buffer.read(int(sys.argv[2])))
    print("written", flush=True)
    if sys.argv[3] == "True":
        sys.stdin.read()
"""


def write_elsewhere(path: Path, *, busy: bool) -> "subprocess.Popen[bytes]":
    """Write CONTENT in another process, which keeps the file open if *busy* is true.

    The test process must not have the file open. It forks to start fusermount3, and the child
    closes all open files. Closing a file on this mount would wait for the test process, which waits
    for the child.
    """
    writer = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path), str(len(CONTENT)), str(busy)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write(CONTENT)
    writer.stdin.flush()
    assert writer.stdout.readline() == b"written\n"
    return writer


@pytest.mark.mount
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_sigterm_unmounts_and_loses_no_data(
    tmp_path: Path, mountpoint: Path, busy: bool
) -> None:
    """After SIGTERM the kernel's dirty pages are written. An open file delays the exit."""
    serve = partial(until_ready, unmount_grace_s=0.1)
    async with opened(tmp_path) as handlers:
        with trio.fail_after(WAIT_S_MAX):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve, handlers.operations, mountpoint)
                write = partial(write_elsewhere, mountpoint / "f", busy=busy)
                writer = await trio.to_thread.run_sync(write)
                if not busy:
                    await trio.to_thread.run_sync(writer.communicate)
                os.kill(os.getpid(), signal.SIGTERM)
        if busy:
            await trio.to_thread.run_sync(writer.communicate)
        written = handlers.fs.lookup(ROOT_INO, b"f")
        assert written is not None
        assert await handlers.fs.read(written.ino, 0, 1 << 20) == CONTENT
    assert str(mountpoint) not in mounts()


@pytest.fixture
def kept_handler() -> Iterator[None]:
    """Set a handler of SIGTERM that does nothing, as a starting mount does."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.mount
@pytest.mark.usefixtures("kept_handler")
async def test_sigterm_before_the_first_request_unmounts(tmp_path: Path, mountpoint: Path) -> None:
    """A service manager may stop a mount as soon as the mount has reported that it is ready."""
    async with opened(tmp_path) as handlers:
        with trio.fail_after(WAIT_S_MAX):
            await serve(
                handlers.operations,
                mountpoint,
                FuseOptions(source="x"),
                on_ready=lambda: signal.raise_signal(signal.SIGTERM),
                unmount_grace_s=0.1,
            )
    assert str(mountpoint) not in mounts()


@pytest.mark.mount
async def test_read_ahead_of_the_kernel_is_set_at_mount(mounted: Mounted) -> None:
    """The read-ahead of the mount is KERNEL_READAHEAD_KIB, if this process may set it."""
    await mounted.run(kernel_session.tune_mount, str(mounted.path))
    device = kernel_session.device_number(str(mounted.path))
    assert device is not None
    tunable = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    if not await mounted.run(os.access, tunable, os.W_OK):
        pytest.skip("only root can set the read-ahead")
    assert await mounted.run(tunable.read_text) == f"{KERNEL_READAHEAD_KIB}\n"
    assert kernel_session.device_number(str(mounted.path.parent)) is None


@pytest.mark.mount
async def test_mount_on_a_missing_directory_is_refused(tmp_path: Path) -> None:
    """A mount on a missing directory raises a single error, not an exception group."""
    async with opened(tmp_path) as handlers:
        with pytest.raises(UsageError, match="cannot mount"):
            await serve(
                handlers.operations,
                tmp_path / "missing",
                FuseOptions(source="x"),
                on_ready=lambda: None,
            )
