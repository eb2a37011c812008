"""Tests of orphans: inodes without a name that are still in use."""

import pytest
import trio
import trio.testing

from s3fs_meta.errors import NoInodeError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.slices import Slices
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.mount_state import MountState
from tests.fs.conftest import (
    BLOCK_BYTES,
    ROOT,
    USER,
    Volume,
    exists,
    look,
    make_directory,
    make_file,
)
from tests.polling import until


async def test_unlinked_open_file_is_readable_until_it_is_closed_and_forgotten(
    fs: Filesystem,
) -> None:
    """An unlinked inode is deleted when it was closed and forgotten, in either order."""
    for forget_first in (True, False):
        ino = make_file(fs, b"f")
        fs.lookups.add(ino, 2)
        fs.open(ino)
        await fs.write(ino, 0, b"content")
        fs.namespace.unlink(ROOT_INO, b"f")
        assert fs.getattr(ino).nlink == 0
        assert fs.lookup(ino, b".") == fs.getattr(ino)
        await fs.write(ino, 7, b" more")
        assert await fs.read(ino, 0, 99) == b"content more"

        ends = [lambda ino=ino: fs.forget(ino, 2), lambda ino=ino: fs.release(ino)]
        for end in ends if forget_first else reversed(ends):
            assert exists(fs, ino)
            end()
        assert not exists(fs, ino)
    assert len(fs.orphans) == 0
    assert fs.db.one("SELECT count(*) FROM blocks") == (0,)
    assert fs.db.counters.file_bytes == 0


async def test_deleting_an_inode_deletes_all_its_rows(fs: Filesystem) -> None:
    """The rows of extended attributes, symlink targets and blocks are deleted with their inode."""
    file = make_file(fs, b"f")
    await fs.write(file, 0, b"a")
    fs.xattrs.set(file, b"user.a", b"1", ROOT)
    fs.namespace.make_symlink(ROOT_INO, b"l", b"target", USER)
    make_directory(fs, b"d")
    fs.namespace.unlink(ROOT_INO, b"f")
    fs.namespace.unlink(ROOT_INO, b"l")
    fs.namespace.remove_directory(ROOT_INO, b"d")
    for table in ("xattrs", "symlinks", "block_map", "blocks", "dentries"):
        assert fs.db.inodes.one(f"SELECT count(*) FROM {table}") == (0,)
    assert fs.db.counters.inodes == 1


async def _leave_orphan(volume: Volume) -> Ino:
    """Unlink a file that the kernel still knows, and kill the daemon; return the file."""
    async with volume.mounted() as fs:
        ino = make_file(fs, b"f")
        fs.lookups.add(ino)
        await fs.write(ino, 0, b"a")
        fs.namespace.unlink(ROOT_INO, b"f")
        volume.commit()
    return ino


async def test_orphans_of_a_killed_daemon_are_purged_at_mount(volume: Volume) -> None:
    """The next mount purges orphans of a killed daemon, because no process has them open."""
    ino = await _leave_orphan(volume)
    async with volume.mounted() as fs, trio.open_nursery() as nursery:
        assert exists(fs, ino)
        nursery.start_soon(fs.run)
        await trio.testing.wait_all_tasks_blocked()
        assert not exists(fs, ino)
        nursery.cancel_scope.cancel()


async def test_orphan_that_a_process_has_open_is_kept_until_close(volume: Volume) -> None:
    """After its promotion, a follower keeps an open file that the former writer has removed."""
    ino = await _leave_orphan(volume)
    async with volume.mounted() as fs, trio.open_nursery() as nursery:
        fs.open(ino)
        nursery.start_soon(fs.run)
        await trio.testing.wait_all_tasks_blocked()
        assert await fs.read(ino, 0, 9) == b"a"
        fs.release(ino)
        assert not exists(fs, ino)
        nursery.cancel_scope.cancel()


async def test_large_orphan_is_purged_in_several_steps(volume: Volume) -> None:
    """A large orphan is purged in the background, or by the next mount if the daemon was killed."""
    async with volume.mounted(slices=Slices(purged_blocks=2)) as fs:
        ino = make_file(fs, b"f")
        for index in range(7):
            await fs.write(ino, index * BLOCK_BYTES, b"a")
        fs.namespace.unlink(ROOT_INO, b"f")
        row = fs.getattr(ino)
        assert (row.nlink, row.mapped_blocks) == (0, 7)
        assert not fs.orphans.purge_piece(row)
        assert fs.getattr(ino).mapped_blocks == 5
        with pytest.raises(NoInodeError):  # An NFS file handle must not open the orphan.
            fs.lookup(ino, b".")
        volume.commit()

    async with volume.mounted() as fs, trio.open_nursery() as nursery:
        assert inodes.orphans(fs.db) == [ino]
        nursery.start_soon(fs.run)
        await until(lambda: not exists(fs, ino))
        nursery.cancel_scope.cancel()
        assert fs.db.one("SELECT count(*) FROM blocks") == (0,)


async def test_degraded_mount_purges_no_orphan(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    fs.lookups.add(ino)
    fs.namespace.unlink(ROOT_INO, b"f")
    fs.status.enter(MountState.DEGRADED, "a test")
    fs.forget(ino, 1)
    assert exists(fs, ino)


async def test_rollback_of_an_unlink_keeps_the_inode(fs: Filesystem, volume: Volume) -> None:
    ino = make_file(fs, b"f")
    volume.commit()
    fs.lookups.add(ino)
    fs.namespace.unlink(ROOT_INO, b"f")
    fs.db.rollback()
    fs.forget(ino, 1)
    assert look(fs, b"f").ino == ino
    assert exists(fs, ino)
