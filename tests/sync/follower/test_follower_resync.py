"""Resync: a follower that cannot apply a txg restores an image and answers requests meanwhile."""

import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import apsw
import pytest
import trio
from trio.testing import MockClock

from s3fs_meta.cache.disk_space import DiskSpace
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.errors import DatabaseError
from s3fs_meta.limits import FOLLOW_LISTING_POLLS, FOLLOW_RESYNC_S, MIB
from s3fs_meta.meta.db.wal import Wal
from s3fs_meta.meta.tables import inodes, local_state
from s3fs_meta.model import Ino
from s3fs_meta.mount_state import MountState
from s3fs_meta.sync.image import restore
from s3fs_meta.sync.session import Session
from tests.damage import flipped
from tests.faults import raising
from tests.sync.conftest import (
    Power,
    follower_of,
    location_of,
    read_file,
    remove_file,
    ship,
    write_file,
)
from tests.sync.follower.following import following

pytestmark = pytest.mark.thorough


async def test_follower_restores_a_txg_that_was_published_as_an_image(power: Power) -> None:
    """After a resync, a follower has new rows and an empty cache, and applies later txgs."""
    async with power.session("a") as writer:
        kept, gone = write_file(writer, b"kept" * 20_000), write_file(writer, b"gone" * 20_000)
        await ship(writer)
        async with following(power) as (session, listener):
            for ino in (kept, gone):
                await read_file(session, ino)
            facts = [local_state.get(session.db, name) for name in ("holder", "clean", "uuid")]
            remove_file(writer, gone)
            await writer.publish_as_txg()
            await listener.wait_for(writer.link.txg)

            assert listener.turns == [None]  # The kernel must look up every name a second time.
            assert inodes.find(session.db, gone) is None
            assert session.cache.index.blocks() == []
            assert await read_file(session, kept) == b"kept" * 20_000
            assert facts == [
                local_state.get(session.db, name) for name in ("holder", "clean", "uuid")
            ]
            late = write_file(writer, b"late")
            await listener.wait_for(await ship(writer))
            assert await read_file(session, late) == b"late"
            await session.close()
        async with following(power) as (session, _listener):
            assert session.volume.notices == ()
            assert not session.volume.crashed
            assert await read_file(session, late) == b"late"


async def test_follower_restores_an_image_if_its_next_changelog_is_missing(power: Power) -> None:
    """If a listing contains later changelogs, the next changelog is missing, not late."""
    async with power.session("a", tasks=False) as writer:
        await ship_file(writer, b"first")
        async with following(power, tasks=False) as (session, _listener):
            follower = follower_of(session)
            for number in range(2):
                await ship_file(writer, b"%d" % number)
            ino = await ship_file(writer, b"2")
            await writer.make_image()
            del power.store.objects[changelog_codec.key_of(follower.link.next_txg)]
            for _ in range(FOLLOW_LISTING_POLLS - 1):
                await follower.poll_once()
            assert follower.link.txg < writer.link.txg - 1

            await follower.poll_once()

            assert follower.link == writer.link
            assert await read_file(session, ino) == b"2"
            assert list(session.volume.state_dir.tmp.iterdir()) == []


async def ship_file(session: Session, content: bytes) -> Ino:
    """Write a file and ship it; return its inode number."""
    ino = write_file(session, content)
    await ship(session)
    return ino


async def test_follower_does_not_apply_a_damaged_changelog(power: Power) -> None:
    """A follower serves its last txg and reports the damage until the changelog is intact."""
    async with power.session("a", tasks=False) as writer:
        await ship_file(writer, b"first")
        async with following(power, tasks=False) as (session, _listener):
            follower = follower_of(session)
            shown = follower.link
            ino = await ship_file(writer, b"second")
            key = changelog_codec.key_of(shown.next_txg)
            sound = power.store.objects[key]
            power.store.objects[key] = flipped(sound, -1)

            errors = set()
            for _ in range(4):
                await follower.poll_once()
                assert key in follower.last_error
                assert follower.link == shown
                assert inodes.find(session.db, ino) is None
                errors.add(follower.last_error)
            assert len(errors) == 1, "each change of the error text would be logged"
            power.store.objects[key] = sound
            await follower.poll_once()

            assert follower.last_error == ""
            assert await read_file(session, ino) == b"second"


async def test_follower_refuses_a_bucket_restored_to_an_older_state(power: Power) -> None:
    """A follower reports that the bucket is older than its own state, and keeps this state."""
    async with power.session("a", tasks=False) as writer:
        await ship_file(writer, b"first")
        before = dict(power.store.objects)
        await ship_file(writer, b"second")
        async with following(power, tasks=False) as (session, _listener):
            follower = follower_of(session)
            shown = follower.link
            power.store.objects.clear()
            power.store.objects.update(before)
            for _ in range(FOLLOW_LISTING_POLLS):
                await follower.poll_once()

            assert "is not in the state that this host saw last" in follower.last_error
            assert follower.link == shown
            assert session.db.counters.inodes == 3


async def test_follower_restores_an_image_if_changes_contradict_its_rows(power: Power) -> None:
    """If a changeset contradicts the rows, the follower applies no part of it."""
    async with power.session("a", tasks=False) as writer:
        ino = await ship_file(writer, b"first")
        async with following(power, tasks=False) as (session, listener):
            follower = follower_of(session)
            applier = await follower.applier()
            applier.begin()
            inodes.touch(applier, ino, mtime_ns=77)
            applier.commit()
            remove_file(writer, ino)
            await ship(writer)

            await follower.poll_once()

            assert listener.turns == [None]
            assert inodes.find(session.db, ino) is None
            assert follower.link == writer.link


@pytest.mark.parametrize("is_refused", [False, True])
async def test_block_fetched_during_a_resync_leaves_no_stray_file(
    power: Power, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """No row and no file is left, even if no thread can notify the kernel after the switch."""
    async with power.session("a", tasks=False) as writer:
        ino = await ship_file(writer, b"x" * 100_000)
        async with following(power, tasks=False) as (session, listener):
            follower, contents = follower_of(session), list[bytes]()

            async def read() -> None:
                contents.append(await read_file(session, ino))

            listener.react = read
            await writer.publish_as_txg()
            with contextlib.ExitStack() as stack:
                if is_refused:
                    refused = RuntimeError("can't start new thread")
                    patch = stack.enter_context(monkeypatch.context())
                    patch.setattr(listener, "after_switch", raising(refused))
                    stack.enter_context(pytest.raises(RuntimeError, match="new thread"))
                await follower.poll_once()

            assert (contents, follower.link) == ([b"x" * 100_000], writer.link)
            block = location_of(session, ino)
            assert session.cache.index.get(block.block) is None
            assert list(session.files.numbers()) == []
            assert await read_file(session, ino) == b"x" * 100_000


def spoiling(spoil: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    """Return a hook that makes the database swap fail at each announcement."""

    async def react() -> None:
        spoil()

    return react


@pytest.mark.parametrize("how", ["gone", "damaged"])
async def test_failed_resync_preserves_the_visible_state_of_a_follower(
    power: Power, how: str, mock_clock: MockClock
) -> None:
    """After a failed resync, the follower answers requests and retries the resync later."""
    async with power.session("a", tasks=False) as writer:
        ino = await ship_file(writer, b"first" * 1000)
        async with following(power, tasks=False) as (session, listener):
            follower, shown = follower_of(session), follower_of(session).link
            await read_file(session, ino)
            beside = session.volume.state_dir.tmp / "anew.db"
            spoil = beside.unlink if how == "gone" else lambda: beside.write_bytes(b"?" * 8192)
            listener.react = spoiling(spoil)
            remove_file(writer, ino)
            await writer.publish_as_txg()

            await follower.poll_once()

            assert follower.last_error
            assert follower.link == shown
            assert session.status.state is MountState.FOLLOWING
            assert await read_file(session, ino) == b"first" * 1000
            mock_clock.jump(FOLLOW_RESYNC_S)
            listener.react = trio.lowlevel.checkpoint
            await follower.poll_once()
            assert follower.last_error == ""
            assert inodes.find(session.db, ino) is None
            assert list(session.files.numbers()) == []


async def test_follower_retries_a_resync_that_failed_because_of_a_full_disk(
    power: Power, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    async with power.session("a", tasks=False) as writer:
        ino = await ship_file(writer, b"first" * 1000)
        async with following(power, tasks=False) as (session, _listener):
            follower, shown = follower_of(session), follower_of(session).link
            remove_file(writer, ino)
            await writer.publish_as_txg()

            with monkeypatch.context() as patch:
                patch.setattr(restore, "free_bytes", lambda _path: 0)
                await follower.poll_once()

            assert "no space left" in follower.last_error
            assert follower.link == shown
            assert session.status.state is MountState.FOLLOWING
            mock_clock.jump(FOLLOW_RESYNC_S)
            await follower.poll_once()
            assert follower.last_error == ""
            assert inodes.find(session.db, ino) is None


def room_at_reservations(disk: DiskSpace, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that records, for each reservation, whether the room was free before it."""
    hold_more, room = disk.hold_more, list[bool]()

    def watched(path: Path, size_bytes: int) -> None:
        room.append(disk.unheld_bytes() >= size_bytes)
        hold_more(path, size_bytes)

    monkeypatch.setattr(disk, "hold_more", watched)
    return room


@pytest.mark.parametrize("fits", [True, False])
async def test_resync_reserves_disk_space_and_evicts_blocks_only_if_that_makes_room(
    power: Power, monkeypatch: pytest.MonkeyPatch, *, fits: bool
) -> None:
    """The cache fills the disk; its file is larger than the database, or much smaller."""
    content = bytes([1]) * (MIB if fits else 1000)
    async with power.session("a", tasks=False) as writer:
        ino = await ship_file(writer, content)
        async with following(power, tasks=False) as (session, _listener):
            await read_file(session, ino)
            disk, index = session.cache.disk, session.cache.index
            disk_bytes = index.total_bytes
            monkeypatch.setattr(disk, "spare_bytes", lambda: disk_bytes - index.total_bytes)
            monkeypatch.setattr(restore, "free_bytes", lambda _path: disk.spare_bytes())
            allocate, seen = restore.allocate, list[tuple[int, int]]()

            def watched(path: Path, size_bytes: int) -> None:
                seen.append((size_bytes, disk.spare_bytes() - disk.unheld_bytes()))
                allocate(path, size_bytes)

            room = room_at_reservations(disk, monkeypatch)
            monkeypatch.setattr(restore, "allocate", watched)
            write_file(writer, b"more" * 100_000)
            await writer.publish_as_txg()
            await follower_of(session).poll_once()

            if fits:
                assert follower_of(session).last_error == ""
                # ``hold_more`` would evict all blocks without a schedule point.
                assert room == [True]
                [(size_bytes, held_bytes)] = seen
                assert held_bytes == size_bytes
                assert disk.unheld_bytes() == disk.spare_bytes()
            else:
                assert "but only 0 are free on the disk" in follower_of(session).last_error
                assert index.total_bytes == len(content)
                assert await read_file(session, ino) == content


async def test_follower_does_not_switch_to_a_database_whose_last_checkpoint_failed(
    power: Power, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """After a failed checkpoint, the write-ahead log has the only copy of some pages."""
    checkpoint = Wal.try_checkpoint

    def fail_beside(wal: Wal, connection: apsw.Connection) -> bool:
        return "anew.db" not in connection.filename and checkpoint(wal, connection)

    async with power.session("a", tasks=False) as writer:
        ino = await ship_file(writer, b"first" * 1000)
        async with following(power, tasks=False) as (session, _listener):
            follower, shown = follower_of(session), follower_of(session).link
            remove_file(writer, ino)
            await writer.publish_as_txg()

            with monkeypatch.context() as patch:
                patch.setattr(Wal, "try_checkpoint", fail_beside)
                await follower.poll_once()

            assert "free space" in follower.last_error
            assert follower.link == shown
            mock_clock.jump(FOLLOW_RESYNC_S)
            await follower.poll_once()
            assert follower.last_error == ""
            assert inodes.find(session.db, ino) is None


async def test_follower_whose_database_is_lost_is_degraded(power: Power) -> None:
    """If neither database can be opened after a resync, the status advises a remount."""
    async with power.session("a", tasks=False) as writer:
        ino = await ship_file(writer, b"first")
        async with following(power, tasks=False) as (session, listener):
            follower = follower_of(session)

            def spoil() -> None:
                (session.volume.state_dir.tmp / "anew.db").unlink()
                session.db.path.write_bytes(b"?" * 8192)

            listener.react = spoiling(spoil)
            await writer.publish_as_txg()
            await follower.poll_once()

            assert session.status.state is MountState.DEGRADED
            assert "mount again" in session.status.why
            with pytest.raises(DatabaseError):
                inodes.find(session.db, ino)
