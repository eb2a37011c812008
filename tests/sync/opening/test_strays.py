"""Stray block files: files without a row in the local database."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.errors import LostBlockError
from s3fs_meta.model import BlockId
from s3fs_meta.sync.volume import OpenOptions
from tests.faults import refuse_file
from tests.sync.conftest import Power, read_file, unmount, write_file

TAKEOVER: Final = OpenOptions(force_takeover=True)
STRAY: Final = BlockId(0x1000)
DIRTY: Final = b"not in the bucket, and unknown to the older database"


def _copy_database(power: Power, copy: Path) -> None:
    copy.mkdir()
    for path in (power.home / "a").glob("meta.db*"):
        shutil.copy(path, copy / path.name)


def _put_back(power: Power, copy: Path) -> None:
    for path in (power.home / "a").glob("meta.db*"):
        path.unlink()
    for path in copy.glob("meta.db*"):
        shutil.copy(path, power.home / "a" / path.name)


def _quarantined(power: Power) -> list[bytes]:
    paths = (power.home / "a").glob("kept-*/blocks/**/*")
    return [path.read_bytes() for path in paths if path.is_file()]


async def _write_and_kill(power: Power) -> None:
    """Write a dirty block and kill the session, so that the lease is not released."""
    async with power.session("a", options=TAKEOVER, tasks=False) as session:
        write_file(session, DIRTY)
        await session.durability.sync_all()


@pytest.mark.parametrize("clean", [True, False], ids=["unmounted", "killed"])
async def test_block_files_newer_than_the_database_are_quarantined(
    power: Power, clean: bool
) -> None:
    """After a restore of an older database, new blocks would use the numbers of stray files."""
    async with power.session("a") as session:
        write_file(session, b"shipped")
        await session.flush_at_end()
        if clean:
            await session.close()
    _copy_database(power, power.home / "backup")
    await _write_and_kill(power)
    _put_back(power, power.home / "backup")

    async with power.session("a", options=TAKEOVER, tasks=False) as session:
        [notice] = [one for one in session.volume.notices if "block file" in one]
        ino = write_file(session, b"new")
        assert await read_file(session, ino) == b"new"

    assert "older than the files" in notice
    assert _quarantined(power) == [DIRTY]


async def test_stray_block_files_newer_than_a_deleted_database_are_quarantined(
    power: Power,
) -> None:
    """If an older database without unshipped changes is deleted, stray block files are kept."""
    async with power.session("a") as session:
        write_file(session, b"shipped")
        await unmount(session)
    _copy_database(power, power.home / "backup")
    async with power.session("b", tasks=False) as session:
        await session.publish_as_txg()
        await session.close()
    await _write_and_kill(power)
    _put_back(power, power.home / "backup")

    async with power.session("a", options=TAKEOVER, tasks=False):
        pass

    assert _quarantined(power) == [DIRTY]


async def test_block_file_is_not_used_if_another_host_used_its_number(power: Power) -> None:
    """Two hosts that continued from one txg may use one block number for different content."""
    async with power.session("a") as session:
        write_file(session, b"shipped")
        await unmount(session)
    _copy_database(power, power.home / "backup")
    await _write_and_kill(power)
    async with power.session("b", options=TAKEOVER) as session:
        ino = write_file(session, b"of another host")
        await unmount(session)
    _put_back(power, power.home / "backup")

    async with power.session("a", options=TAKEOVER) as session:
        assert await read_file(session, ino) == b"of another host"

    assert _quarantined(power) == [DIRTY]


async def test_nothing_is_quarantined_after_a_crash_without_stray_block_files(
    power: Power,
) -> None:
    """After a crash, block files with rows stay in place."""
    await _write_and_kill(power)

    async with power.session("a") as session:
        assert not [one for one in session.volume.notices if "block file" in one]

    assert _quarantined(power) == []


def _leave_stray(power: Power, content: bytes) -> None:
    """Create the block file of an operation that the kill has undone.

    Also create the WAL, which a real kill would leave but a killed test session removes.
    """
    (power.home / "a" / "meta.db-wal").touch()
    files = BlockFiles(power.home / "a" / "blocks", power.home / "a" / "tmp")
    files.create(STRAY, 0, content)


def _stray_path(power: Power) -> Path:
    [path] = (power.home / "a" / "blocks").glob(f"*/{STRAY:x}")
    return path


async def test_block_files_of_uncommitted_operations_are_removed(power: Power) -> None:
    await _write_and_kill(power)
    _leave_stray(power, DIRTY)

    async with power.session("a") as session:
        assert not [one for one in session.volume.notices if "block file" in one]
        assert list(session.files.numbers(BlockId(0x1000))) == []

    assert _quarantined(power) == []


async def test_checkpoint_before_a_kill_causes_no_quarantine(power: Power) -> None:
    """A checkpoint within a commit group changes the database file, but is no commit."""
    await _write_and_kill(power)
    _leave_stray(power, DIRTY)
    database = power.home / "a" / "meta.db"
    while database.stat().st_ctime_ns <= _stray_path(power).stat().st_ctime_ns:
        database.touch()

    async with power.session("a") as session:
        assert not [one for one in session.volume.notices if "block file" in one]

    assert _quarantined(power) == []


async def test_stray_block_files_are_quarantined_if_the_wal_is_missing(power: Power) -> None:
    """If the WAL is missing, it may have contained the rows of stray block files."""
    await _write_and_kill(power)
    _leave_stray(power, DIRTY)
    (power.home / "a" / "meta.db-wal").unlink()

    async with power.session("a", options=TAKEOVER):
        pass

    assert DIRTY in _quarantined(power)


async def test_block_file_with_a_newer_ctime_is_not_quarantined_if_it_has_a_row(
    power: Power,
) -> None:
    """A change of owner or mode sets the ctime of a block file, which does not make it stray."""
    async with power.session("a") as session:
        write_file(session, b"shipped")
        await session.flush_at_end()
    _copy_database(power, power.home / "backup")
    await _write_and_kill(power)
    _put_back(power, power.home / "backup")
    (power.home / "a" / "meta.db-wal").touch()
    for path in (power.home / "a" / "blocks").rglob("*"):
        path.chmod(path.stat().st_mode)

    async with power.session("a", options=TAKEOVER, tasks=False):
        pass

    assert _quarantined(power) == [DIRTY]


async def test_stray_block_files_are_quarantined_after_a_power_cut(
    power: Power, reboot: Callable[[], None]
) -> None:
    """A power cut may lose the last commits and keep their block files."""
    await _write_and_kill(power)
    _leave_stray(power, DIRTY)
    reboot()

    async with power.session("a", options=TAKEOVER):
        pass

    assert _quarantined(power) == [DIRTY]


async def test_mounts_and_writes_succeed_despite_a_block_file_with_a_damaged_inode(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a failing disk, ext4 refuses every call that needs a damaged inode."""
    await _write_and_kill(power)
    _leave_stray(power, b"x")
    refuse_file(monkeypatch, f"{STRAY:x}", errno.EBADMSG)

    async with power.session("a", options=TAKEOVER, tasks=False) as session:
        with pytest.raises(LostBlockError, match="refused"):
            session.files.create(STRAY, 0, b"content")
        ino = write_file(session, DIRTY)
        assert await read_file(session, ino) == DIRTY
        session.files.cut_after(STRAY, 0)
    assert _quarantined(power) == []
