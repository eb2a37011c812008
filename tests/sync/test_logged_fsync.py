"""fsync with the intent log instead of synced block files, and recovery from this log."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from s3fs_meta.cache.crash_safety.intent_log import NAME
from s3fs_meta.check.report import Report
from s3fs_meta.check.run import CacheDirectory, Examined, FsckOptions, check_filesystem
from s3fs_meta.limits import INTENT_LOG_BYTES
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import cached_blocks, local_state
from s3fs_meta.model import BlockState, Ino
from s3fs_meta.sync.opening.end_marks import volatility
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power, location_of, read_file, write_file

FILES = 20


async def make_log(session: Session) -> None:
    """Call fsync once, so that the intent log is created, and then sync all files."""
    await session.durability.sync_file(write_file(session, b"first"))
    await session.durability.make_log_room()
    await session.durability.sync_all()


async def fsynced(session: Session, content: bytes) -> Ino:
    """Create the intent log, write a file and call fsync on it; return the file."""
    await make_log(session)
    ino = write_file(session, content)
    await session.durability.sync_file(ino)
    return ino


def lose_unsynced_files(session: Session) -> list[int]:
    """Remove block files that were never synced, as a power cut may; return their numbers."""
    lost = [tail.block for tail in cached_blocks.unsynced_tails(session.db)]
    for block in lost:
        session.files.remove(block)
    return list(lost)


async def test_fsync_of_small_files_does_not_sync_block_files(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with power.session("a", tasks=False) as session:
        await make_log(session)
        monkeypatch.setattr(session.files, "sync", None)
        for number in range(FILES):
            await session.durability.sync_file(write_file(session, b"%d" % number))


async def test_fsync_of_a_small_file_makes_one_thread_call(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fsync of a small file syncs the intent log and the WAL in one thread call."""
    async with power.session("a", tasks=False) as session:
        await make_log(session)
        start, started = trio.lowlevel.start_thread_soon, list[object]()

        def count(*arguments: Any) -> None:
            started.append(arguments)
            start(*arguments)

        monkeypatch.setattr(trio.lowlevel, "start_thread_soon", count)
        ino = write_file(session, b"content")
        await session.durability.sync_file(ino)

        assert len(started) == 1
        await session.durability.sync_file(ino)
        assert len(started) == 1, "the rows are durable already"


async def test_fdatasync_of_bytes_in_the_intent_log_does_not_sync_rows(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with power.session("a", tasks=False) as session:
        ino = await fsynced(session, b"content")
        monkeypatch.setattr(session.db, "sync_wal", None)
        monkeypatch.setattr(session.files, "sync", None)
        located = location_of(session, ino)
        session.db.begin(times_only=True)
        session.cache.write_in_place(located, 0, b"CONTENT")

        await session.durability.sync_file(ino, data_only=True)


async def test_fsynced_files_survive_a_power_cut_that_loses_block_files(
    power: Power, reboot: Callable[[], None]
) -> None:
    async with power.session("a", tasks=False) as session:
        await make_log(session)
        files = {}
        for number in range(FILES):
            content = b"%d" % number * 100
            files[write_file(session, content)] = content
            await session.durability.sync_file(next(reversed(files)))
        assert len(lose_unsynced_files(session)) == FILES
    reboot()

    async with power.session("a", tasks=False) as session:
        assert {ino: await read_file(session, ino) for ino in files} == files
        await session.flush()


async def test_files_of_a_killed_daemon_survive_a_later_power_cut(
    power: Power, reboot: Callable[[], None]
) -> None:
    """The next mount syncs all block files before it discards the intent log."""
    async with power.session("a", tasks=False) as session:
        ino = await fsynced(session, b"fsynced")
    async with power.session("a", tasks=False) as session:
        assert lose_unsynced_files(session) == []
    reboot()

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, ino) == b"fsynced"


async def test_intent_log_of_an_earlier_mount_does_not_overwrite_later_changes(
    power: Power, reboot: Callable[[], None]
) -> None:
    """The second mount writes no intent log, but changes a block that the old log contains."""
    async with power.session("a", tasks=False) as session:
        ino = await fsynced(session, b"old")
        old = (session.files.root / NAME).read_bytes()
    async with power.session("a", tasks=False) as session:
        located = location_of(session, ino)
        session.db.begin()
        session.cache.write_in_place(located, 0, b"new")
        await session.durability.sync_all()
        assert (session.files.root / NAME).read_bytes() == old
    reboot()

    async with power.session("a", tasks=False) as session:
        assert await read_file(session, ino) == b"new"


async def test_local_state_is_trusted_after_a_power_cut_if_the_intent_log_was_used(
    power: Power, reboot: Callable[[], None]
) -> None:
    """Local state with an intent log is trusted after a power cut; older programs refuse it."""
    async with power.session("a", tasks=False) as session:
        ino = await fsynced(session, b"fsynced")
        assert local_state.get(session.db, "volatile") == "power"
        assert volatility(session.db.pragmas) == "nothing"
    reboot()

    async with power.session("a", tasks=False) as session:
        assert session.volume.notices == ()
        assert await read_file(session, ino) == b"fsynced"
        assert local_state.get(session.db, "volatile") == "nothing"


async def test_read_only_fsck_finds_content_of_the_intent_log_after_a_power_cut(
    power: Power, reboot: Callable[[], None]
) -> None:
    """A read-only fsck reads content from the intent log and changes no block file."""
    async with power.session("a", tasks=False) as session:
        await fsynced(session, b"fsynced")
        assert lose_unsynced_files(session)
    reboot()

    check = OpenOptions(read_only=True, repairing=True)
    async with power.session("a", tasks=False, options=check) as session:
        opened = session.volume
        directory = CacheDirectory(opened.state_dir.blocks, opened.state_dir.tmp)
        examined = Examined(opened.db, opened.store, opened.keyring, directory)
        report = await check_filesystem(examined, FsckOptions(), Report(), power.clock)

    about_files = {"I43", "I45"}
    found = [each for verdict in report.verdicts for each in verdict.examples]
    assert [str(each) for each in found if each.invariant in about_files] == []


@pytest.mark.parametrize("is_clean", [False, True])
async def test_local_state_is_untrusted_after_a_power_cut_if_a_mount_used_synchronous_off(
    power: Power, is_clean: bool, reboot: Callable[[], None]
) -> None:
    """A read-only mount with synchronous=off also makes the state untrusted after a power cut."""
    async with power.session("a", tasks=False) as session:
        await fsynced(session, b"fsynced")
        if is_clean:
            await session.close()
    unsafe = OpenOptions(read_only=True, pragmas=Pragmas(synchronous="off"))
    async with power.session("a", tasks=False, options=unsafe) as session:
        assert not session.volume.notices
    reboot()

    async with power.session("a", tasks=False) as session:
        assert "synchronous=off may have damaged" in session.volume.notices[0]


async def test_read_only_fsck_preserves_the_marker_that_warns_older_programs(power: Power) -> None:
    """The warning for older programs is removed only by a mount that may change block files."""
    async with power.session("a", tasks=False) as session:
        await fsynced(session, b"fsynced")
    check = OpenOptions(read_only=True, repairing=True)
    async with power.session("a", tasks=False, options=check) as session:
        assert local_state.get(session.db, "volatile") == "power"
    async with power.session("a", tasks=False) as session:
        assert local_state.get(session.db, "volatile") == "nothing"


@pytest.mark.parametrize(
    ("journal_mode", "synchronous"), [("delete", "full"), ("wal", "off")], ids=str
)
async def test_intent_log_is_not_used_if_fsync_does_not_sync_the_wal(
    power: Power, journal_mode: str, synchronous: str
) -> None:
    options = OpenOptions(pragmas=Pragmas(journal_mode=journal_mode, synchronous=synchronous))
    async with power.session("a", tasks=True, options=options) as session:
        for _ in range(3):
            await session.durability.sync_file(write_file(session, b"content"))
        for _ in range(3):  # A background task would create the intent log in a thread.
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(int)
        assert not (session.files.root / NAME).exists()


async def test_intent_log_does_not_use_reserved_disk_space(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with power.session("a", tasks=False) as session:
        monkeypatch.setattr(session.cache.disk, "spare_bytes", lambda: INTENT_LOG_BYTES - 1)
        await fsynced(session, b"content")
        assert not (session.files.root / NAME).exists()


async def test_background_sync_syncs_block_files_whose_content_is_in_the_intent_log(
    power: Power,
) -> None:
    """Uploaded blocks become clean after this sync, so it must not rely on the intent log."""
    async with power.session("a", tasks=False) as session:
        await fsynced(session, b"content")
        assert cached_blocks.unsynced_tails(session.db)

        await session.durability.sync_all()

        assert not cached_blocks.unsynced_tails(session.db)
        assert cached_blocks.in_state(session.db, BlockState.DIRTY)
