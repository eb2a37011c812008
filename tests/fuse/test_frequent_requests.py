"""Tests of requests that the extension answers before pyfuse3 sees them, on a real mount."""

import ctypes
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from s3fs_meta.cache.fetching.arrived_content import ArrivedRange
from s3fs_meta.fuse.frequent_requests import (
    FORGETS,
    FORGOTTEN,
    GETXATTR,
    READ,
    SET_ATIME,
    SET_CTIME,
    SET_GID,
    SET_MODE,
    SET_MTIME,
    SET_SIZE,
    SET_UID,
    SETATTR,
    FrequentRequests,
)
from s3fs_meta.fuse.operations import Operations
from s3fs_meta.limits import ANCESTORS_SLICE
from s3fs_meta.meta.tables import block_map
from s3fs_meta.model import ROOT_INO, BlockIndex, Caller, Ino
from tests.faults import raising
from tests.fs.conftest import look, make_directory, make_file
from tests.fuse.conftest import BLOCK_BYTES, Mounted, opened, until_ready
from tests.polling import PROCESS_S_MAX, until

pytestmark = pytest.mark.mount

# The requests that the extension answers without pyfuse3 for small files with plain names.
NOT_PASSED_ON = (
    "lookup",
    "getattr",
    "create",
    "open",
    "write",
    "rename",
    "readdir",
    "mkdir",
    "link",
    "rmdir",
    "unlink",
    "release",
    "symlink",
    "readlink",
    "setxattr",
)
FLOODED = 5000
NONE = 1 << 60  # The kernel ignores answers to request 2^60.
# This program changes the mode of a file as fast as possible, with one request per change.
_FLOOD = "import os, sys\nfor n in range(int(sys.argv[2])): os.chmod(sys.argv[1], 0o600 + n % 2)"

_libc = ctypes.CDLL(None, use_errno=True)


def use(root: Path) -> None:
    """Cause each kind of request in ``NOT_PASSED_ON``, for small files, a directory and links."""
    path = root / "f"
    path.write_bytes(b"content")
    fd = os.open(path, os.O_RDWR)
    assert os.pwrite(fd, b"C", 0) == 1
    os.fsync(fd)
    os.close(fd)
    assert path.read_bytes() == b"Content"
    assert path.stat().st_size == 7
    path.rename(root / "g")
    assert not path.exists()
    (root / "e").mkdir(0o710)
    (root / "e" / "h").hardlink_to(root / "g")
    assert (root / "e").stat().st_mode & 0o777 == 0o710
    assert (root / "g").stat().st_nlink == 2
    (root / "e" / "h").unlink()
    (root / "e").rmdir()
    assert "g" in os.listdir(root)
    os.setxattr(root / "g", "user.a", b"value with \0")
    assert os.getxattr(root / "g", "user.a") == b"value with \0"
    (root / "s").symlink_to("t")
    assert os.readlink(root / "s") == "t"
    (root / "s").unlink()
    (root / "g").unlink()


async def test_small_changes_of_a_file_bypass_pyfuse3(
    mounted: Mounted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handlers of pyfuse3 are made to fail, so only the extension can have answered."""
    for name in NOT_PASSED_ON:
        monkeypatch.setattr(
            Operations, name, raising(AssertionError("pyfuse3 has received the request"))
        )

    await mounted.run(use, mounted.path)

    requests = mounted.handlers.operations.requests
    await until(lambda: requests["release"] > 0)  # close(2) does not wait for the RELEASE request.
    assert all(requests[name] for name in NOT_PASSED_ON)
    assert not mounted.handlers.operations.status.read_only


async def test_changes_in_a_deep_directory_work_while_a_tree_is_removed(
    tmp_path: Path, mountpoint: Path
) -> None:
    """The check whether a directory is in a removed tree takes more than one slice."""
    async with opened(tmp_path) as made, trio.open_nursery() as nursery:
        # The task that deletes removed trees is not started, so that the tree remains.
        nursery.start_soon(made.session.run)
        await nursery.start(until_ready, made.operations, mountpoint)
        deep, path = ROOT_INO, mountpoint
        for _ in range(ANCESTORS_SLICE + 1):
            deep, path = make_directory(made.fs, b"d", deep), path / "d"
        tree = make_directory(made.fs, b"tree")
        make_file(made.fs, b"file", tree)
        made.fs.tree_removal.remove(ROOT_INO, b"tree", tree)

        await trio.to_thread.run_sync(use, path)

        assert len(made.fs.orphans.trees) == 1
        assert not made.operations.status.read_only
        nursery.cancel_scope.cancel()


async def test_errors_of_requests_to_the_extension_reach_the_program(mounted: Mounted) -> None:
    """After the errors, the mount is still usable."""

    def fail(root: Path) -> None:
        with pytest.raises(FileNotFoundError):
            (root / "missing").unlink()
        with pytest.raises(OSError, match="File name too long"):
            (root / ("n" * 256)).touch()
        (root / "d").mkdir()
        with pytest.raises(IsADirectoryError):
            (root / "d").unlink()

    await mounted.run(fail, mounted.path)
    await mounted.run(use, mounted.path)


def move_far_down(root: Path) -> None:
    """Move a directory below 2 * ANCESTORS_SLICE + 1 others.

    A descriptor divides the path, because each part of it must be shorter than PATH_MAX.
    """
    half = "d/" * ANCESTORS_SLICE
    middle = os.open(root / half, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.rename(root / "moved", f"{half}d/here", dst_dir_fd=middle)
    finally:
        os.close(middle)


async def test_directory_can_be_moved_to_a_very_deep_directory(mounted: Mounted) -> None:
    """The check for cycles takes three slices, and pyfuse3 waits for the last slice."""
    fs, deepest = mounted.handlers.fs, ROOT_INO
    for _ in range(2 * ANCESTORS_SLICE + 1):
        deepest = make_directory(fs, b"d", deepest)
    ino = make_directory(fs, b"moved")

    await mounted.run(move_far_down, mounted.path)

    assert look(fs, b"here", deepest).ino == ino
    assert fs.lookup(ROOT_INO, b"moved") is None


def list_all_kinds(root: Path) -> None:
    """Create names of every length and of four types; compare a listing with lstat(2)."""
    for length in range(1, 256):
        (root / ("n" * length)).touch()
    (root / "d").mkdir()
    (root / "s").symlink_to("n")
    os.mkfifo(root / "p")
    with os.scandir(root) as found:
        seen = {
            entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False), entry.is_symlink())
            for entry in found
        }
    assert len(seen) == 255 + 3
    for name, (ino, is_dir, is_symlink) in seen.items():
        status = (root / name).lstat()
        assert (ino, is_dir, is_symlink) == (
            status.st_ino,
            stat.S_ISDIR(status.st_mode),
            stat.S_ISLNK(status.st_mode),
        )


async def test_listing_has_the_inode_number_and_the_type_of_every_entry(mounted: Mounted) -> None:
    """A listing takes several replies, and each name is listed exactly once."""
    await mounted.run(list_all_kinds, mounted.path)
    assert mounted.handlers.operations.requests["readdir"] > 2


@pytest.mark.skipif(os.geteuid() != 0, reason="the test needs root privileges")
async def test_create_request_uses_uid_and_gid_and_umask_of_the_process(mounted: Mounted) -> None:
    """The umask 027 removes permissions of the group and of others."""
    code = (
        "import os\nos.umask(0o027)\nos.setgid(1234)\nos.setuid(4321)\n"
        "os.close(os.open('f', os.O_WRONLY | os.O_CREAT, 0o666))"
    )
    await mounted.run(os.chmod, mounted.path, 0o777)
    await mounted.run(
        lambda: subprocess.run(
            [sys.executable, "-c", code], cwd=mounted.path, check=True, timeout=PROCESS_S_MAX
        )
    )
    status = await mounted.run(os.stat, mounted.path / "f")
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (4321, 1234, 0o640)


async def test_other_tasks_run_during_continuous_requests(mounted: Mounted) -> None:
    """The extension returns to the event loop even if another request is always available."""
    path = mounted.path / "f"
    await mounted.run(path.touch)
    command = [sys.executable, "-c", _FLOOD, str(path), str(FLOODED)]
    requests = mounted.handlers.operations.requests
    most_in_one_pass = 0
    async with trio.open_nursery() as nursery:

        async def flood() -> None:
            await mounted.run(lambda: subprocess.run(command, check=True, timeout=PROCESS_S_MAX))

        async def count() -> None:
            nonlocal most_in_one_pass
            while True:
                served = requests["setattr"]
                await trio.lowlevel.checkpoint()
                most_in_one_pass = max(most_in_one_pass, requests["setattr"] - served)

        nursery.start_soon(count)
        before = requests["setattr"]
        async with trio.open_nursery() as clients:
            clients.start_soon(flood)
            clients.start_soon(flood)
        nursery.cancel_scope.cancel()
    assert requests["setattr"] - before == 2 * FLOODED
    # A request takes more than 1 us, and the event loop serves requests for at most 1 ms at a time.
    assert 0 < most_in_one_pass <= 1000


def set_and_remove_attributes(path: Path) -> None:
    """Read extended attributes of a file that has no attribute, then one, then none again."""
    path.touch()
    for _ in range(2):
        assert os.listxattr(path) == []
        for name in ("security.capability", "system.posix_acl_access", "user.a"):
            with pytest.raises(OSError, match="No data"):
                os.getxattr(path, name)
        os.setxattr(path, "user.a", b"value")
        assert os.listxattr(path) == ["user.a"]
        assert os.getxattr(path, "user.a") == b"value"
        with pytest.raises(OSError, match="No data"):
            os.getxattr(path, "security.capability")
        os.removexattr(path, "user.a")


async def test_xattr_requests_get_correct_replies_with_and_without_xattrs(mounted: Mounted) -> None:
    """Extended attributes are read correctly, whether a file has any or none."""
    await mounted.run(set_and_remove_attributes, mounted.path / "f")
    requests = mounted.handlers.operations.requests
    assert requests["getxattr"] >= 8
    assert requests["listxattr"] >= 4


def set_new_and_existing(path: Path) -> None:
    """Set an extended attribute with XATTR_CREATE, with XATTR_REPLACE and without flags."""
    path.touch()
    with pytest.raises(OSError, match="No data"):
        os.setxattr(path, "user.a", b"1", os.XATTR_REPLACE)
    os.setxattr(path, "user.a", b"2", os.XATTR_CREATE)
    with pytest.raises(FileExistsError):
        os.setxattr(path, "user.a", b"3", os.XATTR_CREATE)
    os.setxattr(path, "user.a", b"", os.XATTR_REPLACE)
    assert os.getxattr(path, "user.a") == b""
    os.setxattr(path, "user.a", b"4")
    assert os.getxattr(path, "user.a") == b"4"


async def test_setxattr_obeys_the_flags_create_and_replace(mounted: Mounted) -> None:
    await mounted.run(set_new_and_existing, mounted.path / "f")


async def test_one_forget_request_can_forget_several_inodes(mounted: Mounted) -> None:
    """The kernel forgets many inodes with one request. Unlinked files are then deleted."""
    fs = mounted.handlers.fs
    names = [mounted.path / str(number) for number in range(3)]
    for path in names:
        await mounted.run(path.touch)
    inos = [Ino((await mounted.run(os.stat, path)).st_ino) for path in names]
    raw = FrequentRequests(mounted.handlers.operations)
    counts = [fs.lookups.count(ino) for ino in inos]
    for ino in inos:
        fs.lookups.add(ino, 2)
    pairs = b"".join(FORGOTTEN.pack(ino, 2) for ino in inos)
    raw.forget_many(NONE, Ino(0), 0, FORGETS.pack(len(inos)) + pairs + bytes(8))
    assert [fs.lookups.count(ino) for ino in inos] == counts


async def test_extension_itself_answers_only_requests_for_missing_xattrs(mounted: Mounted) -> None:
    """The kernel asks for ``security.capability`` before writes, so the answer must be quick."""
    fs = mounted.handlers.fs
    capability = GETXATTR.pack(0) + b"security.capability\0"
    other = GETXATTR.pack(0) + b"user.a\0"
    await mounted.run((mounted.path / "f").touch)
    ino = Ino((await mounted.run(os.stat, mounted.path / "f")).st_ino)
    raw = FrequentRequests(mounted.handlers.operations)
    quick = raw.getxattr, raw.listxattr
    assert [ask(NONE, ino, 0, capability) for ask in quick] == [True, True]
    assert not raw.getxattr(NONE, ino, 0, other)
    assert [ask(NONE, Ino(ino + 1000), 0, capability) for ask in quick] == [False, False]
    fs.xattrs.set(ino, b"user.a", b"value", Caller(0, 0, 0, 0))
    assert [ask(NONE, ino, 0, capability) for ask in quick] == [False, False]
    fs.db.inodes.run("UPDATE inodes SET mode = x'00' WHERE ino = ?", (ino,))
    assert [ask(NONE, ino, 0, capability) for ask in quick] == [False, False]


def write_parts(path: Path) -> None:
    """Write a complete block, leave a hole of one block, and write a part of a third block."""
    with path.open("wb") as file:
        file.write(b"a" * BLOCK_BYTES)
        file.seek(2 * BLOCK_BYTES)
        file.write(b"c" * 100)


async def test_extension_answers_a_read_only_if_one_cached_block_contains_it(
    mounted: Mounted,
) -> None:
    """A read of a hole, of two blocks, or at the end of the file is passed to pyfuse3."""
    path = mounted.path / "f"
    await mounted.run(write_parts, path)
    ino = Ino((await mounted.run(os.stat, path)).st_ino)
    requests = mounted.handlers.operations.requests
    raw = FrequentRequests(mounted.handlers.operations)

    def is_answered(offset: int, length: int) -> bool:
        before = requests["read"]
        answered = raw.read(NONE, ino, 0, READ.pack(offset, length))
        assert requests["read"] == before + answered
        return answered

    assert is_answered(0, BLOCK_BYTES)
    assert is_answered(10, 4096)
    assert is_answered(2 * BLOCK_BYTES, BLOCK_BYTES)
    assert not is_answered(BLOCK_BYTES, 4096)
    assert not is_answered(BLOCK_BYTES - 10, 20)
    assert not is_answered(2 * BLOCK_BYTES + 100, 4096)
    assert not raw.read(NONE, Ino(ino + 1000), 0, READ.pack(0, 4096))


async def test_read_is_answered_from_content_in_memory(mounted: Mounted) -> None:
    """The cache file and the content in memory differ, so that a reply shows its source."""
    path, size_bytes = mounted.path / "f", BLOCK_BYTES
    await mounted.run(path.write_bytes, b"a" * size_bytes)
    await mounted.run(drop_pages, path)
    fs = mounted.handlers.fs
    ino = Ino((await mounted.run(os.stat, path)).st_ino)
    for count in (100, size_bytes):
        await mounted.run(drop_pages, path)
        found = block_map.locate(fs.db, ino, BlockIndex(0))
        assert found is not None
        content, source = memoryview(b"b" * size_bytes), ArrivedRange(size_bytes, 0.0)
        mounted.handlers.session.cache.fetcher.arrived_content.add(found, content, source)
        assert await mounted.run(read_first, path, count) == b"b" * count


def read_first(path: Path, count: int) -> bytes:
    """Return the first bytes of a file, without the kernel's read-ahead."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return file.read(count)


async def test_read_of_a_truncated_cache_file_fails_instead_of_returning_fewer_bytes(
    mounted: Mounted,
) -> None:
    """If the file of a dirty block is too short, the read fails, because no other copy exists."""
    path = mounted.path / "f"
    await mounted.run(path.write_bytes, b"a" * 10_000)
    await mounted.run(drop_pages, path)
    ino = Ino((await mounted.run(os.stat, path)).st_ino)
    found = mounted.handlers.fs.data.find_cached(ino, 0, 10_000)
    assert found is not None
    assert isinstance(found[0], int)
    os.ftruncate(found[0], 9_999)
    with pytest.raises(OSError, match="Input/output error"):
        await mounted.run(path.read_bytes)


def drop_pages(path: Path) -> None:
    """Write back the dirty pages of a file, and drop its pages from the kernel's memory."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def size_of_list(path: Path) -> int:
    """Return the size that listxattr(2) reports to a caller without a buffer."""
    return int(_libc.listxattr(os.fsencode(path), None, 0))


async def test_listxattr_without_a_buffer_returns_the_length_of_the_list(mounted: Mounted) -> None:
    path = mounted.path / "f"
    await mounted.run(path.touch)
    assert await mounted.run(size_of_list, path) == 0
    await mounted.run(os.setxattr, path, "user.a", b"value")
    assert await mounted.run(size_of_list, path) == len(b"user.a\0")


def times_request(valid: int) -> bytes:
    """Return a setattr request that sets these time fields."""
    return SETATTR.pack(valid, -2, 3, 4, 999_999_999, 0, 5, 0o640, 7, 8)


async def test_changes_of_attributes_other_than_the_size_bypass_pyfuse3(tmp_path: Path) -> None:
    """The extension handles attribute changes without a size, and pyfuse3 handles all others."""
    async with opened(tmp_path) as handlers:
        raw, fs = FrequentRequests(handlers.operations), handlers.fs
        made = fs.namespace.make_node(ROOT_INO, b"f", 0o100644, Caller(0, 0, 0, 0))
        times = SET_ATIME | SET_MTIME | SET_CTIME
        assert raw.setattr(NONE, made.ino, 0, times_request(times))
        after = fs.getattr(made.ino)
        assert (after.atime_ns, after.mtime_ns, after.ctime_ns) == (
            -1_000_000_001,
            3_000_000_000,
            4_000_000_005,
        )
        assert after[:7] == made[:7]
        assert raw.setattr(NONE, made.ino, 0, times_request(SET_MODE | SET_UID | SET_GID))
        last = fs.getattr(made.ino)
        assert (last.mode, last.uid, last.gid) == (0o100640, 7, 8)
        assert (last.atime_ns, last.mtime_ns) == (after.atime_ns, after.mtime_ns)
        requests = handlers.operations.requests["setattr"]
        assert requests == 2
        assert not raw.setattr(NONE, made.ino, 0, times_request(SET_SIZE | SET_MTIME))
        assert fs.getattr(made.ino) == last
        assert raw.setattr(NONE, Ino(made.ino + 1000), 0, times_request(SET_MODE))
        assert handlers.operations.requests["setattr"] == requests + 1


def set_attributes(root: Path) -> None:
    """Change attributes by system calls, some of which must be refused."""
    path = root / "f"
    path.write_bytes(b"content")
    os.chmod(path, 0o4750)
    os.chown(path, 1, 2)
    os.utime(path, ns=(-1_000_000_001, 4_000_000_000_999_999_999))
    found = path.stat()
    assert (found.st_mode, found.st_uid, found.st_gid, found.st_size) == (0o100750, 1, 2, 7)
    assert (found.st_atime_ns, found.st_mtime_ns) == (-1_000_000_001, 4_000_000_000_999_999_999)
    os.truncate(path, 3)
    assert path.read_bytes() == b"con"
    subprocess.run(["chattr", "+i", path], check=True)
    with pytest.raises(PermissionError):
        os.chmod(path, 0o600)
    subprocess.run(["chattr", "-i", path], check=True)


async def test_kernel_receives_the_replies_to_attribute_changes(mounted: Mounted) -> None:
    """Programs see the results and the errors that the FUSE extension sends."""
    await mounted.run(set_attributes, mounted.path)
