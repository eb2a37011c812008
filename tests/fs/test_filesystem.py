"""Tests of operations of the complete filesystem: open, O_TRUNC, statfs and listings."""

from collections.abc import Awaitable, Callable

import pytest

from s3fs_meta.errors import NeedsDirectoryError, NoInodeError, ReadOnlyStateError
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.namespace import RENAME_EXCHANGE
from s3fs_meta.limits import UNLIMITED_CAPACITY_BYTES
from s3fs_meta.model import ROOT_INO, AccessTime, Cookie, Ino
from s3fs_meta.mount_state import MountState
from s3fs_meta.options.settings import FilesystemOptions
from tests.fs.conftest import (
    BLOCK_BYTES,
    ROOT,
    USER,
    Volume,
    look,
    make_directory,
    make_file,
)


@pytest.mark.parametrize(("uid", "mode"), [(0, 0o106755), (1000, 0o100755)])
async def test_truncation_by_size_sets_times_and_clears_privileges(
    fs: Filesystem, volume: Volume, uid: int, mode: int
) -> None:
    """A truncation to size 0 clears suid and sgid unless the caller is root."""
    ino = make_file(fs, b"f", mode=0o6755)
    await fs.write(ino, 0, b"abc")
    now_ns = volume.clock.later()
    row = await fs.setattr(ino, SetAttributes(size_bytes=0), USER._replace(uid=uid))
    assert (row.size_bytes, row.mtime_ns, row.ctime_ns, row.mode) == (0, now_ns, now_ns, mode)
    assert fs.getattr(ino) == row


async def test_open_of_a_missing_inode_fails_and_opens_nothing(fs: Filesystem) -> None:
    with pytest.raises(NoInodeError):
        fs.open(Ino(999))
    with pytest.raises(NoInodeError):
        fs.open_directory(Ino(999))
    with pytest.raises(NeedsDirectoryError):
        fs.open_directory(make_file(fs, b"f"))
    assert len(fs.open_files) == 0


async def test_degraded_mount_refuses_to_change_the_size(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"abc")
    fs.status.enter(MountState.DEGRADED, "a test")
    with pytest.raises(ReadOnlyStateError):
        await fs.setattr(ino, SetAttributes(size_bytes=0), USER)
    assert fs.getattr(ino).size_bytes == 3


async def test_changing_the_size_of_a_file_sets_mtime_and_ctime(
    fs: Filesystem, volume: Volume
) -> None:
    """A change of the size sets mtime and ctime, unless the kernel sends times of its own."""
    ino = make_file(fs, b"f")
    now_ns = volume.clock.later()
    after = await fs.setattr(ino, SetAttributes(size_bytes=10), USER)
    assert (after.size_bytes, after.mtime_ns, after.ctime_ns) == (10, now_ns, now_ns)
    later_ns = volume.clock.later()
    after = await fs.setattr(ino, SetAttributes(size_bytes=10), USER)
    assert (after.mtime_ns, after.ctime_ns) == (later_ns, later_ns)
    after = await fs.setattr(ino, SetAttributes(size_bytes=0, mtime_ns=5, ctime_ns=6), USER)
    assert (after.mtime_ns, after.ctime_ns, after.size_bytes) == (5, 6, 0)
    assert fs.getattr(ino) == after


async def test_setting_the_present_size_does_not_change_times_that_the_kernel_keeps(
    fs: Filesystem, volume: Volume
) -> None:
    """For a truncate(2) to the same size, the kernel sends no times, so no time changes."""
    ino = make_file(fs, b"f", mode=0o4755)
    await fs.setattr(ino, SetAttributes(size_bytes=10), ROOT, sets_times=False)
    before = fs.getattr(ino)
    volume.clock.later()
    after = await fs.setattr(ino, SetAttributes(size_bytes=10), USER, sets_times=False)
    assert after == fs.getattr(ino) == before._replace(mode=0o100755)


async def test_no_request_that_changes_an_inode_changes_its_birth_time(
    fs: Filesystem, volume: Volume
) -> None:
    born = volume.clock.now_ns()
    directory, other = make_directory(fs, b"d"), make_directory(fs, b"other")
    ino = make_file(fs, b"f", directory)
    changes: list[Callable[[], Awaitable[object] | object]] = [
        lambda: fs.setattr(ino, SetAttributes(mode=0o600), ROOT),
        lambda: fs.setattr(ino, SetAttributes(uid=7), ROOT),
        lambda: fs.setattr(ino, SetAttributes(mtime_ns=5, ctime_ns=6), ROOT),
        lambda: fs.write(ino, 0, b"content" * 20_000),
        lambda: fs.setattr(ino, SetAttributes(size_bytes=10), ROOT),
        lambda: fs.xattrs.set(ino, b"user.a", b"1", ROOT),
        lambda: fs.namespace.link(ino, ROOT_INO, b"link"),
        lambda: fs.namespace.rename(directory, b"f", ROOT_INO, b"f"),
        lambda: fs.namespace.rename(ROOT_INO, b"f", ROOT_INO, b"other", RENAME_EXCHANGE),
        lambda: fs.namespace.unlink(ROOT_INO, b"link"),
        volume.upload,
    ]
    for change in changes:
        volume.clock.later()
        done = change()
        if isinstance(done, Awaitable):
            await done
        assert {fs.getattr(one).btime_ns for one in (ino, directory, other)} == {born}
        assert look(fs, b"d").btime_ns == born
    assert make_file(fs, b"late") > other
    assert look(fs, b"late").btime_ns == volume.clock.now_ns()
    fs.db.inodes.settle()
    assert {fs.getattr(one).btime_ns for one in (ino, directory, other)} == {born}


async def test_statfs_reports_used_bytes_and_inodes(fs: Filesystem) -> None:
    """The call statfs counts bytes and inodes. Without a capacity it reports an unlimited size."""
    empty = fs.statfs()
    assert (empty.capacity_bytes, empty.inodes) == (UNLIMITED_CAPACITY_BYTES, 1)
    assert empty.free_bytes == empty.capacity_bytes
    await fs.write(make_file(fs, b"f"), 0, b"a" * 1000)
    fs.set_capacity(4000)
    figures = fs.statfs()
    assert (figures.capacity_bytes, figures.free_bytes, figures.inodes) == (4000, 3000, 2)


async def test_listing_in_pages_returns_every_name_once(fs: Filesystem) -> None:
    """A listing in pages returns every name once, even if names are removed between two pages."""
    directory = make_directory(fs, b"d")
    made = {b"n%d" % number for number in range(50)}
    for name in made:
        make_file(fs, name, directory)
    seen: list[bytes] = []
    after = Cookie(0)
    while page := fs.read_directory(directory, after, 7):
        seen += [name for name, _, _ in page]
        after = page[-1][1]
        fs.namespace.unlink(directory, page[0][0])
    assert (len(seen), set(seen)) == (50, made)


async def test_fsync_makes_a_file_durable(fs: Filesystem, volume: Volume) -> None:
    """If the daemon is killed, a file has the content and the name that it had at its last fsync."""
    ino = make_file(fs, b"f")
    await fs.write(ino, BLOCK_BYTES, b"abc")
    await fs.sync_file(ino)
    fs.db.close()
    volume.session.volume.state_dir.unlock()
    async with volume.mounted() as again:
        assert await again.read(ino, BLOCK_BYTES, 99) == b"abc"
        assert again.lookup(ROOT_INO, b"f") is not None


async def test_single_request_can_change_mode_owner_and_size(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    wanted = SetAttributes(mode=0o600, uid=7, size_bytes=3)
    after = await fs.setattr(ino, wanted, ROOT)
    assert (after.mode, after.uid, after.size_bytes) == (0o100600, 7, 3)


@pytest.mark.parametrize("counts", [False, True])
async def test_nodiratime_preserves_the_atime_of_directories(volume: Volume, counts: bool) -> None:
    """With nodiratime, a read keeps the atime of a directory but updates the atime of a file."""
    options = FilesystemOptions(access_time=AccessTime.ALWAYS, directory_times=counts)
    async with volume.mounted(options) as fs:
        directory, file = make_directory(fs, b"d"), make_file(fs, b"f")
        await fs.write(file, 0, b"a")
        now_ns = volume.clock.later()
        fs.open_directory(directory)
        await fs.read(file, 0, 1)

        assert (fs.getattr(directory).atime_ns == now_ns) is counts
        assert fs.getattr(file).atime_ns == now_ns
