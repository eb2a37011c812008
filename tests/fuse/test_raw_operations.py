"""Tests of requests that the extension handles in addition to pyfuse3, on a real mount."""

import ctypes
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.errors import NoInodeError, NoSpaceLeftError
from s3fs_meta.fs.content.file_ranges import KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.meta.tables import block_map
from s3fs_meta.model import ROOT_INO, Attributes, BlockIndex, Ino
from tests.end_to_end.system_calls import wait_for_clock_tick
from tests.faults import raising
from tests.fuse.conftest import (
    BLOCK_BYTES,
    Handlers,
    Mounted,
    no_free_thread,
    opened,
    until_ready,
)

pytestmark = pytest.mark.mount

NONE = 1 << 60  # The kernel ignores answers to request 2^60.

_libc = ctypes.CDLL(None, use_errno=True)


def fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    """Call fallocate of the C library."""
    if _libc.fallocate(fd, mode, ctypes.c_longlong(offset), ctypes.c_longlong(length)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def seal(root: Path) -> None:
    """Make a file with dirty pages immutable, and continue to write through the open descriptor."""
    with open(root / "f", "wb", buffering=0) as file:
        file.write(b"taken before")
        subprocess.run(["chattr", "+i", root / "f"], check=True)
        with pytest.raises(PermissionError):
            open(root / "f", "r+b")  # noqa: SIM115 - this open fails
        file.write(b", and after")
        os.fsync(file.fileno())
    assert (root / "f").read_bytes() == b"taken before, and after"
    with pytest.raises(PermissionError):
        os.utime(root / "f")
    subprocess.run(["chattr", "-i", root / "f"], check=True)
    (root / "f").unlink()


async def test_file_being_written_becomes_immutable_without_data_loss(mounted: Mounted) -> None:
    """A process that opened a file for writing can still write after it becomes immutable."""
    await mounted.run(seal, mounted.path)


def make_holes(root: Path) -> None:
    """Punch and zero ranges of an open file, and extend it."""
    content = bytearray(os.urandom(4 * BLOCK_BYTES))
    fd = os.open(root / "f", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, content, 0)
        os.fsync(fd)
        for mode, offset, length in (
            (PUNCH_HOLE | KEEP_SIZE, BLOCK_BYTES - 10, BLOCK_BYTES + 20),
            (ZERO_RANGE, 3 * BLOCK_BYTES + 5, 100),
        ):
            fallocate(fd, mode, offset, length)
            content[offset : offset + length] = bytes(length)
        assert os.pread(fd, len(content) + 1, 0) == content
        assert os.fstat(fd).st_blocks == 3 * BLOCK_BYTES // 512
        os.posix_fallocate(fd, 0, 6 * BLOCK_BYTES)
        assert os.fstat(fd).st_size == 6 * BLOCK_BYTES
        fallocate(fd, KEEP_SIZE, 0, 9 * BLOCK_BYTES)
        assert os.fstat(fd).st_size == 6 * BLOCK_BYTES
        assert os.pread(fd, 10 * BLOCK_BYTES, 0) == content + bytes(2 * BLOCK_BYTES)
    finally:
        os.close(fd)


async def test_fallocate_punches_holes_and_extends_files(mounted: Mounted) -> None:
    """After fallocate, reads return the new content, not old pages of the kernel."""
    await mounted.run(make_holes, mounted.path)
    assert mounted.handlers.operations.requests["fallocate"] == 4


def copy_with_cp(root: Path, size_bytes: int) -> None:
    """Copy a file with cp(1); compare the copy with its source."""
    content = os.urandom(size_bytes)
    (root / "f").write_bytes(content)
    subprocess.run(["cp", root / "f", root / "g"], check=True)
    assert (root / "g").read_bytes() == content


async def test_cp_of_uploaded_content_shares_its_blocks(mounted: Mounted) -> None:
    path, handlers = mounted.path, mounted.handlers
    content = os.urandom(3 * BLOCK_BYTES)
    await mounted.run((path / "f").write_bytes, content)
    await handlers.session.flush()
    before = handlers.session.db.counters.block_bytes

    await mounted.run(lambda: subprocess.run(["cp", path / "f", path / "g"], check=True))
    assert handlers.operations.requests["copy_file_range"] > 0
    assert handlers.session.db.counters.block_bytes == before

    await mounted.run((path / "f").write_bytes, b"another")
    assert await mounted.run((path / "g").read_bytes) == content


async def lose_block(handlers: Handlers, ino: Ino, index: int) -> None:
    """Upload all blocks; then delete all packs, and the cache file of one block."""
    session = handlers.session
    await session.flush()
    await session.durability.sync_all()
    store = session.volume.store
    await store.delete([info.key async for info in store.list("pack/")])
    located = block_map.locate(session.db, ino, BlockIndex(index))
    assert located is not None
    session.files.remove(located.block)


def fail_in_the_second_block(root: Path) -> tuple[bytes, bytes]:
    """Copy and punch ranges across the start of a lost block; return the earlier bytes."""
    with open(root / "f", "rb") as source, open(root / "g", "r+b", buffering=0) as target:
        half, fd = BLOCK_BYTES // 2, target.fileno()
        assert os.copy_file_range(source.fileno(), fd, BLOCK_BYTES, 0, half) == half
        after_copy = os.pread(fd, BLOCK_BYTES, 0)
        with pytest.raises(OSError, match="Input/output error"):
            fallocate(fd, PUNCH_HOLE | KEEP_SIZE, 10, BLOCK_BYTES)
        return after_copy, os.pread(fd, BLOCK_BYTES, 0)


def fail_to_copy(root: Path, length: int) -> None:
    """Try to copy a lost range to the tenth byte of another file, which must fail."""
    with (
        open(root / "f", "rb") as source,
        open(root / "g", "r+b") as target,
        pytest.raises(OSError, match="Input/output error"),
    ):
        os.copy_file_range(source.fileno(), target.fileno(), length, 0, 10)


def read_at(path: Path, offset: int) -> bytes:
    """Return ten bytes of a file, from the kernel's pages if it has any."""
    with open(path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), 10, offset)


def write_and_sync(path: Path, content: bytes) -> None:
    """Write a file with fsync(2)."""
    with open(path, "wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())


async def fill_source_and_target(mounted: Mounted) -> bytes:
    """Create two files; return the content of the second file, whose pages the kernel caches."""
    content = os.urandom(3 * BLOCK_BYTES)
    await mounted.run((mounted.path / "f").write_bytes, os.urandom(BLOCK_BYTES))
    await mounted.run(write_and_sync, mounted.path / "g", content)
    assert await mounted.run((mounted.path / "g").read_bytes) == content
    return content


LENGTHS = pytest.mark.parametrize("length", [100, BLOCK_BYTES], ids=["at once", "in a task"])


@LENGTHS
async def test_kernel_drops_its_pages_of_the_range_that_a_failed_copy_may_have_changed(
    mounted: Mounted, length: int
) -> None:
    """A copy onto a full disk may fail after it has changed a part of its first block."""
    content, handlers = await fill_source_and_target(mounted), mounted.handlers
    target = handlers.fs.lookup(ROOT_INO, b"g")
    assert target is not None
    located = block_map.locate(handlers.session.db, target.ino, BlockIndex(0))
    assert located is not None
    handlers.session.files.remove(located.block)

    with no_free_thread():
        own, path = trio.CapacityLimiter(1), mounted.path
        await trio.to_thread.run_sync(fail_to_copy, path, length, limiter=own)

    reads = handlers.operations.requests["read"]
    assert await mounted.run(read_at, path / "g", len(content) - 10) == content[-10:]
    assert handlers.operations.requests["read"] == reads, "pages outside the range were dropped"
    with pytest.raises(OSError, match="Input/output error"):
        await mounted.run(read_at, path / "g", 0)


@LENGTHS
async def test_failed_copy_that_changed_nothing_leaves_the_pages_of_the_kernel(
    mounted: Mounted, length: int
) -> None:
    """Dropping pages may wait for write-back, for example while the bucket is unreachable."""
    content, handlers = await fill_source_and_target(mounted), mounted.handlers
    source = handlers.fs.lookup(ROOT_INO, b"f")
    assert source is not None
    await lose_block(handlers, source.ino, 0)
    reads = handlers.operations.requests["read"]

    await mounted.run(fail_to_copy, mounted.path, length)

    assert await mounted.run((mounted.path / "g").read_bytes) == content
    assert handlers.operations.requests["read"] == reads


async def test_failed_change_of_a_range_leaves_no_outdated_page_in_the_kernel(
    mounted: Mounted,
) -> None:
    """A copy or hole punch that fails in its second block leaves no old page in the kernel."""
    source, target, handlers = (
        os.urandom(BLOCK_BYTES),
        os.urandom(2 * BLOCK_BYTES),
        mounted.handlers,
    )
    await mounted.run((mounted.path / "f").write_bytes, source)
    await mounted.run((mounted.path / "g").write_bytes, target)
    ino = Ino((await mounted.run((mounted.path / "g").stat)).st_ino)
    assert await mounted.run((mounted.path / "g").read_bytes) == target
    await lose_block(handlers, ino, 1)

    shown = await mounted.run(fail_in_the_second_block, mounted.path)

    stored = await handlers.fs.read(ino, 0, BLOCK_BYTES)
    assert stored == target[: BLOCK_BYTES // 2] + source[: BLOCK_BYTES // 2]
    assert shown == (stored, stored)


async def test_cp_copies_dirty_content(mounted: Mounted) -> None:
    await mounted.run(copy_with_cp, mounted.path, 3 * BLOCK_BYTES + 7)


def listed(folder: Path) -> list[str]:
    """Return the sorted names of a directory."""
    return sorted(os.listdir(folder))


async def test_unchanged_directory_is_listed_from_the_kernel_cache(mounted: Mounted) -> None:
    """The kernel caches a listing until the directory changes."""
    path, requests = mounted.path, mounted.handlers.operations.requests
    await mounted.run((path / "d").mkdir)
    for number in range(300):
        await mounted.run((path / "d" / f"{number:03}").touch)
    names = [f"{number:03}" for number in range(300)]

    assert await mounted.run(listed, path / "d") == names
    asked = requests["readdir"]
    for _ in range(3):
        assert await mounted.run(listed, path / "d") == names
    assert requests["readdir"] == asked
    assert requests["opendir"] == 0

    await mounted.run((path / "d" / "new").touch)
    await mounted.run((path / "d" / "000").unlink)
    await mounted.run(os.rename, path / "d" / "001", path / "other")
    assert await mounted.run(listed, path / "d") == [*names[2:], "new"]
    assert await mounted.run(listed, path) == ["d", "other"]


async def test_cached_listing_shows_changes_by_the_daemon(mounted: Mounted) -> None:
    """A listing is correct after a copy and a removal by the daemon within one clock tick."""
    path, fs = mounted.path, mounted.handlers.fs
    await mounted.run((path / "f").touch)
    ino = fs.getattr(ROOT_INO).ino
    for number in range(20):
        found = fs.lookup(ROOT_INO, b"f")
        assert found is not None
        reported = await fs.tree_clone.clone(
            CloneTarget(ino, b"f"), found.ino, CloneTarget(ino, b"g"), lambda _progress: None
        )
        await reported.wait()
        assert await mounted.run(listed, path) == ["f", "g"], number
        copied = fs.lookup(ROOT_INO, b"g")
        assert copied is not None
        await fs.tree_removal.remove(ROOT_INO, b"g", copied.ino).wait()
        assert await mounted.run(listed, path) == ["f"], number


async def test_kernel_requests_a_symlink_target_only_once(mounted: Mounted) -> None:
    """The kernel caches the target of a symlink."""
    await mounted.run(os.symlink, "target", mounted.path / "l")
    for _ in range(3):
        assert await mounted.run(os.readlink, mounted.path / "l") == "target"
    assert mounted.handlers.operations.requests["readlink"] == 1


def set_flags(root: Path) -> None:
    """Set and clear flags with chattr(1), and read them with lsattr(1)."""
    for name in ("f", "d"):
        subprocess.run(["chattr", "+i", root / name], check=True)
        said = subprocess.run(["lsattr", "-d", root / name], check=True, capture_output=True)
        assert said.stdout.split()[0].strip(b"-") == b"i"
        with pytest.raises(PermissionError):
            (root / name).rename(root / "new")
        subprocess.run(["chattr", "-i", "+a", root / name], check=True)
        said = subprocess.run(["lsattr", "-d", root / name], check=True, capture_output=True)
        assert said.stdout.split()[0].strip(b"-") == b"a"
    with open(root / "f", "ab") as file:
        file.write(b"more")
    for mode in ("r+b", "wb"):
        with pytest.raises(PermissionError):
            open(root / "f", mode)  # noqa: SIM115 - this open fails
    refused = subprocess.run(["chattr", "+d", root / "f"], check=False, capture_output=True)
    assert b"not supported" in refused.stderr
    subprocess.run(["chattr", "-a", root / "f", root / "d"], check=True)


async def test_chattr_and_lsattr_support_flags_immutable_and_append_only(mounted: Mounted) -> None:
    """chattr(1) can set immutable and append-only. Other flags are refused."""
    await mounted.run((mounted.path / "f").write_bytes, b"content, ")
    await mounted.run((mounted.path / "d").mkdir)
    await mounted.run(set_flags, mounted.path)
    assert await mounted.run((mounted.path / "f").read_bytes) == b"content, more"
    await mounted.run((mounted.path / "f").unlink)
    await mounted.run((mounted.path / "d").rmdir)


def send_unknown_ioctl(path: Path) -> None:
    """Call ioctl(2) with an unknown command, which must fail."""
    with open(path, "rb") as file, pytest.raises(OSError, match="Inappropriate ioctl"):
        fcntl.ioctl(file, 0x8008_667F, bytes(8))


async def test_chattr_changes_the_ctime_of_a_directory_immediately(mounted: Mounted) -> None:
    """The kernel caches attributes of a directory, so the daemon must invalidate them."""
    folder = mounted.path / "d"
    await mounted.run(folder.mkdir)
    before = await mounted.run(folder.stat)
    for flag in ("+i", "-i"):
        await mounted.run(subprocess.check_call, ["chattr", flag, folder])
        stored = mounted.handlers.fs.getattr(Ino(before.st_ino))
        after = await mounted.run(folder.stat)
        assert after.st_ctime_ns == stored.ctime_ns > before.st_ctime_ns
        before = after


async def test_unknown_ioctl_is_refused(mounted: Mounted) -> None:
    """An unknown ioctl fails with ENOTTY, and the mount continues."""
    await mounted.run((mounted.path / "f").touch)
    await mounted.run(send_unknown_ioctl, mounted.path / "f")
    assert mounted.handlers.session.status.writable


def make_nameless(root: Path) -> None:
    """Create two files with O_TMPFILE, and give one of them a name with ln(1)."""
    fd = os.open(root, os.O_TMPFILE | os.O_RDWR, 0o640)
    other = os.open(root, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o640)
    try:
        for each in (fd, other):
            os.write(each, b"content")
        assert (os.fstat(fd).st_nlink, os.listdir(root)) == (0, [])
        link = ["ln", "--logical"]
        subprocess.run([*link, f"/proc/{os.getpid()}/fd/{fd}", root / "f"], check=True)
        refused = subprocess.run(
            [*link, f"/proc/{os.getpid()}/fd/{other}", root / "g"],
            check=False,
            capture_output=True,
        )
        assert b"No such file" in refused.stderr
        assert os.fstat(fd).st_nlink == 1
    finally:
        os.close(fd)
        os.close(other)


async def test_file_made_with_o_tmpfile_can_be_linked(mounted: Mounted) -> None:
    """A file made with O_TMPFILE can be linked, unless O_EXCL was also given."""
    await mounted.run(make_nameless, mounted.path)
    assert await mounted.run((mounted.path / "f").read_bytes) == b"content"
    found = await mounted.run((mounted.path / "f").stat)
    assert (found.st_nlink, oct(found.st_mode)) == (1, "0o100640")


def write_as_other_user(path: Path) -> None:
    """Write as another user to a file with privilege bits, which must fail."""
    path.chmod(0o6775)
    with open(path, "r+b", buffering=0) as file:
        code = f"import os; fd = {file.fileno()}; os.setuid(65534); os.write(fd, b'changed')"
        done = subprocess.run(
            [sys.executable, "-c", code], pass_fds=[file.fileno()], check=False, capture_output=True
        )
    assert b"No space left" in done.stderr


async def test_write_is_refused_if_privilege_bits_cannot_be_cleared(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If privilege bits cannot be cleared, the write fails and the content stays."""
    path, fs = mounted.path / "f", mounted.handlers.fs
    await mounted.run(path.write_bytes, b"content")
    monkeypatch.setattr(
        fs.attributes, "clear_privileges", raising(NoSpaceLeftError("the disk is full"))
    )
    await mounted.run(write_as_other_user, path)
    monkeypatch.undo()
    assert await mounted.run(path.read_bytes) == b"content"


def stat_with_birth(path: Path) -> tuple[str, ...]:
    """Return the output of stat(1): size, owner, group, mode, type, device, links and times."""
    words = "%s %u %g %a %F %t:%T %h %i %.X %.Y %.Z %.W"
    done = subprocess.run(["stat", "-c", words, path], check=True, capture_output=True, text=True)
    return tuple(done.stdout.split())


async def test_statx_returns_birth_time_and_all_attributes(mounted: Mounted) -> None:
    """stat(1) reports the birth time of a file, which no change affects."""
    path, fs = mounted.path / "f", mounted.handlers.fs
    await mounted.run(os.mknod, path, 0o20640, os.makedev(260, 1_000_001))
    made = fs.lookup(ROOT_INO, b"f")
    assert made is not None
    wait_for_clock_tick()
    await mounted.run(os.chown, path, 12, 34)
    await mounted.run(lambda: os.utime(path, ns=(1_000_000_001, -1_500_000_000)))
    await mounted.run(path.rename, mounted.path / "g")
    shown = await mounted.run(stat_with_birth, mounted.path / "g")
    found = await mounted.run(os.stat, mounted.path / "g")
    assert shown[:7] == ("0", "12", "34", "640", "character", "special", "file")
    assert shown[7:10] == ("104:f4241", "1", str(found.st_ino))
    assert shown[10:12] == ("1.000000001", "-1.500000000")
    assert shown[13] == f"{made.btime_ns // 10**9}.{made.btime_ns % 10**9:09}"
    assert fs.getattr(made.ino).btime_ns == made.btime_ns < fs.getattr(made.ino).ctime_ns
    assert mounted.handlers.operations.requests["statx"] == 1


async def test_statx_of_a_missing_inode_is_an_error(mounted: Mounted) -> None:
    """A statx request for a missing inode fails with ESTALE."""
    path, fs = mounted.path / "f", mounted.handlers.fs
    await mounted.run(path.touch)
    fs.getattr = missing
    said = await mounted.run(
        lambda: subprocess.run(["stat", "-c", "%W", path], check=False, capture_output=True)
    )
    assert b"Stale file handle" in said.stderr


def missing(ino: Ino) -> Attributes:
    """Raise NoInodeError, as for a removed inode."""
    raise NoInodeError(ino)


CAPABILITY = "security.capability"
CAP_NET_RAW = bytes.fromhex(
    "0100000200200000000000000000000000000000"
)  # a file capability of version 2; see capabilities(7)


CHANGES = (
    "os.write(fd, b'x')",
    "os.ftruncate(fd, 3)",
    "os.pwrite(fd, b'x' * 9000, 0)",
    "os.posix_fallocate(fd, 0, 9999)",
    "ctypes.CDLL(None).fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(99)) and 1 / 0",
    "os.copy_file_range(fd, fd, 10, 0, 4000)",
)


REFUSED_CHANGES = (
    "os.posix_fallocate(fd, 1 << 60, 1)",
    "os.copy_file_range(fd, fd, 10, 0, 1 << 60)",
)


def write_and_check_privileges(path: Path) -> None:
    """Write as root and as user 65534; return which privilege bits remain."""
    with open(path, "r+b", buffering=0) as file:
        for _ in range(2):
            file.write(b"first")
            os.setxattr(path, CAPABILITY, CAP_NET_RAW)
            path.chmod(0o6775)
            file.write(b"second")
            assert CAPABILITY not in os.listxattr(path)
            assert path.stat().st_mode & 0o7777 == 0o6775, "writes by root must keep the bits"
        for change in CHANGES:
            path.chmod(0o6775)
            code = f"import ctypes, os; fd = {file.fileno()}; os.setuid(65534); {change}"
            subprocess.run([sys.executable, "-c", code], pass_fds=[file.fileno()], check=True)
            assert oct(path.stat().st_mode & 0o7777) == "0o775", change
        path.chmod(0o6775)
        for change in REFUSED_CHANGES:
            code = f"import ctypes, os; fd = {file.fileno()}; os.setuid(65534); {change}"
            done = subprocess.run(
                [sys.executable, "-c", code],
                pass_fds=[file.fileno()],
                check=False,
                stderr=subprocess.PIPE,
            )
            assert b"File too large" in done.stderr, change
            assert oct(path.stat().st_mode & 0o7777) == "0o6775", change
    path.chmod(0o6775)
    os.chown(path, 12, 34)
    assert oct(path.stat().st_mode & 0o7777) == "0o775"
    path.chmod(0o6777)
    directory = os.open(path.parent, os.O_RDONLY)  # User 65534 may not search the parents.
    try:
        code = (
            "import os; os.setuid(65534);"
            f"os.open({path.name!r}, os.O_WRONLY | os.O_TRUNC, dir_fd={directory})"
        )
        subprocess.run([sys.executable, "-c", code], pass_fds=[directory], check=True)
    finally:
        os.close(directory)
    assert oct(path.stat().st_mode & 0o7777) == "0o777"


async def test_changes_by_another_user_clear_the_privilege_bits(mounted: Mounted) -> None:
    """Several kinds of changes clear suid, sgid and capabilities, unless the change fails."""
    await mounted.run((mounted.path / "f").touch)
    await mounted.run(write_and_check_privileges, mounted.path / "f")


async def test_waiting_request_blocks_no_other_request(tmp_path: Path, mountpoint: Path) -> None:
    """While one request waits, others are answered. At unmount the waiting request fails."""
    waits = trio.Event()

    async def forever(*_arguments: object) -> None:
        waits.set()
        await trio.sleep_forever()

    code = f"import os; os.posix_fallocate(os.open({str(mountpoint / 'f')!r}, os.O_RDWR), 0, 10)"
    async with opened(tmp_path) as made, trio.open_nursery() as nursery:
        made.fs.ranges.allocate = forever  # type: ignore[assignment]
        await nursery.start(until_ready, made.operations, mountpoint)
        await trio.to_thread.run_sync((mountpoint / "f").touch)
        process = await trio.lowlevel.open_process(
            [sys.executable, "-c", code], stderr=subprocess.PIPE
        )
        await waits.wait()
        assert await trio.to_thread.run_sync(os.listdir, mountpoint) == ["f"]
        nursery.cancel_scope.cancel()
    assert process.stderr is not None
    said = b"".join([part async for part in process.stderr])
    assert await process.wait() == 1
    assert b"Error: [Errno" in said
