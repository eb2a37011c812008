"""Healing of holes that fsck has made, with blocks from quarantined states."""

import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.errors import DatabaseFullError, ThreadShortageError
from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.lost_ranges import ATTRIBUTE
from s3fs_meta.meta.tables import block_map, cached_blocks, inodes, xattrs
from s3fs_meta.model import BlockId, BlockIndex, Ino
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening import hole_healing
from s3fs_meta.sync.opening.hole_healing import heal_holes
from s3fs_meta.sync.opening.opening import close_filesystem, open_filesystem
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions, Volume
from tests.faults import raising
from tests.sync.conftest import Power, location_of, read_file, unmount, write_file
from tests.sync.lost_packs import delete_packs, repair

pytestmark = pytest.mark.thorough

CONTENT = os.urandom(5000)
MIB = 1 << 20


async def _lose(power: Power, write: Callable[[Session], Ino]) -> Ino:
    """Write a file on host a, delete its packs and run fsck -y on host b; return the inode."""
    async with power.session("a", tasks=False) as session:
        ino = write(session)
        await unmount(session)
    delete_packs(power)
    await repair(power)
    return ino


@asynccontextmanager
async def _opened(power: Power, host: str = "a") -> AsyncIterator[Volume]:
    """Open the filesystem without the background tasks of a mount; close it afterwards."""
    volume = await open_filesystem(
        power.store, StateDir(power.home / host), power.secret, power.clock, OpenOptions()
    )
    try:
        yield volume
        await close_filesystem(volume, release=False)
    finally:
        volume.db.close()
        volume.state_dir.unlock()


def _one_block(session: Session) -> Ino:
    return write_file(session, CONTENT)


def _three_blocks(session: Session) -> Ino:
    """Write a file of three blocks: a full block, a hole and a short block."""
    ino = write_file(session, CONTENT.ljust(MIB, b"1"))
    session.cache.write_new(ino, BlockIndex(2), 0, CONTENT)
    session.db.inodes.run("UPDATE inodes SET size_bytes = ? WHERE ino = ?", (2 * MIB + 5000, ino))
    inodes.add_mapped_blocks(session.db, ino, 1)
    return ino


def _two_blocks(session: Session) -> Ino:
    """Write a file of two adjacent blocks, which fsck records as one lost part."""
    ino = write_file(session, CONTENT.ljust(MIB, b"1"))
    session.cache.write_new(ino, BlockIndex(1), 0, CONTENT)
    session.db.inodes.run("UPDATE inodes SET size_bytes = ? WHERE ino = ?", (MIB + 5000, ino))
    inodes.add_mapped_blocks(session.db, ino, 1)
    return ino


async def test_mount_heals_a_hole_and_other_hosts_can_read_its_content(power: Power) -> None:
    """A mount with the cached blocks restores all bytes and removes the record of the loss."""
    ino = await _lose(power, _three_blocks)

    async with _opened(power) as volume:
        [notice] = await heal_holes(volume)
        assert notice.startswith(
            "healed 2 blocks of 1 file that fsck had replaced with holes, from"
        )
        assert inodes.get(volume.db, ino).mapped_blocks == 2
        assert xattrs.find(volume.db, ino, ATTRIBUTE) is None
        assert await heal_holes(volume) == []

    async with power.session("a", tasks=False) as session:
        await unmount(session)
    async with power.session("b", tasks=False) as session:
        for index, content in ((0, CONTENT.ljust(MIB, b"1")), (2, CONTENT)):
            await session.cache.fetch(location_of(session, ino, index))
            cached = location_of(session, ino, index)
            assert session.cache.read_local(cached, 0, len(content)) == content
        assert block_map.locate(session.db, ino, BlockIndex(1)) is None


def _touch(db: Database, ino: Ino) -> None:
    inodes.touch(db, ino, mtime_ns=1)


def _grow(db: Database, ino: Ino) -> None:
    db.inodes.run("UPDATE inodes SET size_bytes = size_bytes + 1 WHERE ino = ?", (ino,))


def _accept(db: Database, ino: Ino) -> None:
    xattrs.remove(db, ino, ATTRIBUTE)


@pytest.mark.parametrize("change", [_touch, _grow, _accept])
async def test_holes_of_a_changed_file_are_not_healed(
    power: Power, change: Callable[[Database, Ino], None]
) -> None:
    """A hole stays if the file was changed or the loss was accepted, since zeros may be wanted."""
    ino = await _lose(power, _one_block)
    async with _opened(power) as volume:
        volume.db.begin()
        change(volume.db, ino)

        assert await heal_holes(volume) == []

        assert inodes.get(volume.db, ino).mapped_blocks == 0


async def test_healing_does_not_overwrite_new_content_in_a_hole(power: Power) -> None:
    """Only the untouched hole is healed; the xattr lists the range that is still lost."""
    ino = await _lose(power, _three_blocks)
    async with power.session("a", tasks=False) as session:
        session.db.begin()
        session.cache.write_new(ino, BlockIndex(0), 0, b"new")
        inodes.add_mapped_blocks(session.db, ino, 1)
        await unmount(session)

    async with _opened(power) as volume:
        [notice] = await heal_holes(volume)
        assert notice.startswith("healed 1 block of 1 file ")
        recorded = lost_ranges.parse(xattrs.get(volume.db, ino, ATTRIBUTE))
        assert recorded == [range(MIB)]


def _flip(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


@pytest.mark.parametrize("spoil", [_flip, Path.unlink])
async def test_hole_is_healed_only_by_content_with_the_right_hash(
    power: Power, spoil: Callable[[Path], None]
) -> None:
    """If the quarantined block file is damaged or missing, the hole stays recorded as lost."""
    ino = await _lose(power, _one_block)
    async with _opened(power) as volume:
        [kept] = volume.state_dir.path.glob("kept-*/blocks/*/*")
        spoil(kept)

        assert await heal_holes(volume) == []

        assert xattrs.find(volume.db, ino, ATTRIBUTE) is not None


def _damage_header(database: Path) -> None:
    database.write_bytes(b"?" * 8192)


def _damage_local_state(database: Path) -> None:
    """Overwrite the first page of a table that is not read when the database is opened."""
    db = Database.open(database, Pragmas())
    [root] = db.one("SELECT rootpage FROM sqlite_master WHERE name = 'local_state'") or ()
    [page_bytes] = db.one("PRAGMA page_size") or ()
    db.close()
    with database.open("r+b") as file:
        file.seek((root - 1) * page_bytes)
        file.write(b"\xff" * page_bytes)


@pytest.mark.parametrize("damage", [_damage_header, _damage_local_state])
async def test_quarantine_with_a_damaged_database_does_not_prevent_a_mount(
    power: Power, damage: Callable[[Path], None]
) -> None:
    """If one quarantined state has a damaged database, a mount uses the other states."""
    ino = await _lose(power, _one_block)
    async with _opened(power) as volume:
        other = volume.state_dir.quarantine("9" * 19)
        other.mkdir()
        with closing(volume.db.open_snapshot()) as snapshot:
            snapshot.copy_to(other / "meta.db")
        damage(other / "meta.db")

        [notice] = await heal_holes(volume)

        assert notice.startswith("healed 1 block of 1 file ")
        assert inodes.get(volume.db, ino).mapped_blocks == 1


async def test_mount_on_a_full_disk_leaves_holes_unhealed(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full, the mount continues with a notice, and the holes stay."""
    ino = await _lose(power, _one_block)
    monkeypatch.setattr("s3fs_meta.cache.disk_space.DiskSpace.spare_bytes", lambda _self: 0)
    async with _opened(power) as volume:
        [notice] = await heal_holes(volume)

        assert "not all lost parts of files were healed" in notice
        assert xattrs.find(volume.db, ino, ATTRIBUTE) is not None


async def test_healed_content_survives_a_power_cut(power: Power) -> None:
    """Block files of healed blocks are synced before their rows are committed."""
    ino = await _lose(power, _one_block)
    async with _opened(power) as volume:
        await heal_holes(volume)
        synced = volume.db.all("SELECT synced_bytes FROM cached_blocks")
        assert synced == [(len(CONTENT),)]
        path = volume.db.path
    db = Database.open(path, Pragmas())
    db.begin_local()
    db.run("UPDATE local_state SET value = '0' WHERE name = 'clean'")
    db.run("UPDATE local_state SET value = 'another' WHERE name = 'boot_id'")
    db.commit()
    db.close()

    async with power.session("a", tasks=False) as session:
        assert session.volume.power_lost
        assert await read_file(session, ino) == CONTENT


async def test_healed_content_is_synced_before_its_rows_are_committed(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the power fails before the commit, the hole remains, and no row lacks its content."""
    await _lose(power, _one_block)
    order: list[str] = []
    sync, commit = BlockFiles.sync, Database.commit

    def note_sync(files: BlockFiles, made: Sequence[BlockId]) -> None:
        order.append("files")
        sync(files, made)

    def note_commit(db: Database) -> None:
        order.append("rows")
        commit(db)

    async with _opened(power) as volume:
        with monkeypatch.context() as patched:
            patched.setattr(BlockFiles, "sync", note_sync)
            patched.setattr(Database, "commit", note_commit)
            await heal_holes(volume)

    assert order[:2] == ["files", "rows"]


@pytest.mark.parametrize("failing", [1, 2])
async def test_shortage_of_threads_leaves_the_holes_for_the_next_mount(
    power: Power, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """If a block cannot be read in a thread, no hole of its group is healed, and no file stays."""
    ino = await _lose(power, _two_blocks)
    reads: list[object] = []

    async def refusing(work: Callable[..., object], *arguments: object) -> object:
        if getattr(work, "__name__", "") == "_content":
            reads.append(work)
            if len(reads) == failing:
                raise ThreadShortageError
        return await in_thread(work, *arguments)

    async with _opened(power) as volume:
        with monkeypatch.context() as patched:
            patched.setattr(hole_healing, "in_thread", refusing)
            [notice] = await heal_holes(volume)
        assert "no thread can be started" in notice
        assert inodes.get(volume.db, ino).mapped_blocks == 0
        assert list(BlockFiles(volume.state_dir.blocks, volume.state_dir.tmp).numbers()) == []

        [notice] = await heal_holes(volume)
        assert notice.startswith("healed 2 blocks of 1 file ")


@pytest.mark.parametrize("error", [ThreadShortageError(), OSError(errno.EIO, "failed")])
async def test_holes_are_healed_only_after_their_content_is_synced(
    power: Power, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A failed sync maps no block; without threads the sync runs on the event loop."""
    ino = await _lose(power, _two_blocks)
    is_shortage = isinstance(error, ThreadShortageError)
    run_sync = trio.to_thread.run_sync

    async def failing(work: Callable[..., object], *arguments: object, **options: Any) -> object:
        if getattr(work, "__name__", "") in {"sync", "sync_wal"}:
            raise RuntimeError("can't start new thread") if is_shortage else error
        return await run_sync(work, *arguments, **options)

    async with _opened(power) as volume:
        with monkeypatch.context() as patched:
            patched.setattr(trio.to_thread, "run_sync", failing)
            with (
                contextlib.nullcontext() if is_shortage else pytest.raises(OSError, match="failed")
            ):
                await heal_holes(volume)
        volume.db.commit()

        synced = volume.db.all("SELECT count(*) FROM cached_blocks WHERE synced_bytes > 0")
        assert inodes.get(volume.db, ino).mapped_blocks == (2 if is_shortage else 0)
        assert synced == [(2 if is_shortage else 0,)]


async def test_failed_mapping_of_healed_blocks_undoes_all_its_rows(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    ino = await _lose(power, _two_blocks)
    async with _opened(power) as volume:
        with monkeypatch.context() as patched:
            patched.setattr(cached_blocks, "note_synced", raising(DatabaseFullError("full")))
            await heal_holes(volume)

        assert inodes.get(volume.db, ino).mapped_blocks == 0
        assert volume.db.all("SELECT * FROM block_map") == []
        [notice] = await heal_holes(volume)
        assert notice.startswith("healed 2 blocks of 1 file ")
