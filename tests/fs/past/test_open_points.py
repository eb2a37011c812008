"""Tests of the points in time that a mount opens and closes."""

import errno
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from typing_extensions import override

from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.codec.changelog import key_of
from s3fs_meta.errors import (
    BusyError,
    DatabaseError,
    DatabaseFullError,
    NoSpaceLeftError,
    PastUnavailableError,
    StoreUnavailableError,
)
from s3fs_meta.fs.past.open_points import OpenPoints
from s3fs_meta.limits import (
    PAST_CHECK_S,
    PAST_IDLE_S,
    PAST_POINTS_OPEN_MAX,
    PAST_WAITING_MAX,
    RESTORE_APART_BYTES_MIN,
    WAITING_HANDLERS_MAX,
)
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO, PointInTime, Txg
from s3fs_meta.objects.billing import Meter, MeteredStore, RequestClass
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.faults import no_threads, raising
from tests.fs.past.nowhere import nowhere
from tests.polling import WAIT_S_MAX, until
from tests.sync.conftest import Power, write_file
from tests.tasks import running

pytestmark = pytest.mark.thorough


READ_ONLY = OpenOptions(read_only=True)


def points_of(
    session: Session,
    state_of: Callable[[Txg], StateDir] | None = None,
    *,
    may_spawn: bool = True,
    apart_bytes_min: int = RESTORE_APART_BYTES_MIN,
) -> OpenPoints:
    """Return the open points in time of a session's filesystem."""
    home = session.volume.state_dir.path.parent
    return OpenPoints(
        session.volume,
        session.cache.disk,
        state_of or (lambda txg: StateDir(home / f"snapshot {txg}")),
        nowhere,
        may_spawn=may_spawn,
        apart_bytes_min=apart_bytes_min,
    )


@asynccontextmanager
async def shipped(plain: Power, txgs: int) -> AsyncIterator[tuple[Session, list[Txg]]]:
    """Run a session that has uploaded several txgs; yield the session and the txg numbers."""
    async with plain.session(tasks=False) as session:
        found = []
        for _ in range(txgs):
            write_file(session, b"x")
            await session.shipper.ship(anyway=True)
            found.append(session.link.txg)
        yield session, found


def snapshots_in(home: Path) -> list[str]:
    """Return the names of temporary state directories for points in time."""
    return [path.name for path in home.iterdir() if "snapshot" in path.name]


async def inodes_at(points: OpenPoints, txg: Txg) -> int:
    """Return the number of inodes that existed at a txg."""
    async with points.used(txg) as point:
        return int(point.db.counters.inodes)


async def test_only_the_most_recently_used_points_in_time_stay_open(plain: Power) -> None:
    async with shipped(plain, PAST_POINTS_OPEN_MAX + 2) as (session, txgs):
        points = points_of(session)
        counts = [await inodes_at(points, txg) for txg in txgs]
        open_at_end = points.txgs
        assert await inodes_at(points, txgs[0]) == counts[0]
        async with running(points.run):
            await trio.testing.wait_all_tasks_blocked()

    assert counts == list(range(counts[0], counts[0] + len(txgs)))
    assert open_at_end == txgs[-PAST_POINTS_OPEN_MAX:]
    assert points.count == 0


async def test_opening_a_point_in_time_reuses_the_listings_from_the_search_for_it(
    plain: Power,
) -> None:
    meter = Meter()
    async with plain.session(tasks=False, store=MeteredStore(plain.store, meter)) as session:
        for _ in range(2):
            write_file(session, b"x")
            await session.shipper.ship(anyway=True)
        earlier = Txg(session.link.txg - 1)
        points = points_of(session)
        assert await points.find(PointInTime("earlier", txg=earlier)) is not None
        meter.take()
        await inodes_at(points, earlier)
        after_search = lists_in(meter)
        await inodes_at(points, session.link.txg)
        assert after_search < lists_in(meter)
        async with running(points.run):
            await trio.testing.wait_all_tasks_blocked()


def lists_in(meter: Meter) -> int:
    """Return the number of LIST requests since the last call of ``meter.take``."""
    sent = [counts for one in meter.take().values() for counts in one.items()]
    return sum(one.requests for (_, kind), one in sent if kind == RequestClass.LIST.value)


async def test_idle_point_in_time_is_closed_and_its_files_are_removed(
    plain: Power, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """An idle point in time is closed and its state removed. A point in use stays open."""
    async with shipped(plain, 2) as (session, (first, second)):
        points = points_of(session)
        async with running(points.run):
            await inodes_at(points, first)
            async with points.used(second) as point:
                await trio.sleep(PAST_IDLE_S + 2 * PAST_CHECK_S)
                assert points.txgs == [second]
                assert point.db.counters.inodes
            # The simulated clock advances while a thread removes the directory.
            while len(snapshots_in(tmp_path)) > 1:  # noqa: ASYNC110
                await trio.sleep(1)
            assert snapshots_in(tmp_path) == [f"snapshot {second}"]
            await trio.sleep(PAST_IDLE_S)
            while points.count:  # noqa: ASYNC110
                await trio.sleep(1)


async def test_files_of_an_idle_point_in_time_are_removed_without_threads(
    plain: Power, tmp_path: Path, autojump_clock: MockClock
) -> None:
    """No later task would remove them during the mount."""
    async with shipped(plain, 1) as (session, (txg,)):
        points = points_of(session)
        async with running(points.run):
            await inodes_at(points, txg)
            with no_threads():
                await trio.sleep(PAST_IDLE_S + 2 * PAST_CHECK_S)
            assert points.count == 0
            assert snapshots_in(tmp_path) == []


async def test_points_in_time_stay_open_between_requests_after_their_task_was_restarted(
    plain: Power,
) -> None:
    """The task runs again after it could not start a thread."""
    async with shipped(plain, 1) as (session, (txg,)):
        points = points_of(session)
        async with running(points.run):
            await trio.testing.wait_all_tasks_blocked()

        async with running(points.run):
            await trio.testing.wait_all_tasks_blocked()
            await inodes_at(points, txg)
            assert points.txgs == [txg]


class HeldStateDir(StateDir):
    """A state directory whose removal waits for an event."""

    def __init__(self, path: Path, removing: threading.Event, may_remove: threading.Event) -> None:
        self._removing, self._may_remove = removing, may_remove
        super().__init__(path)

    @override
    def remove(self) -> None:
        self._removing.set()
        self._may_remove.wait(WAIT_S_MAX)
        super().remove()


async def test_cancelled_request_still_removes_the_files_of_closed_points_in_time(
    plain: Power, tmp_path: Path
) -> None:
    """A request that is cancelled while it closes several points still removes all their files."""
    removing, may_remove = threading.Event(), threading.Event()

    def state_of(txg: Txg) -> StateDir:
        return HeldStateDir(tmp_path / f"snapshot {txg}", removing, may_remove)

    async with shipped(plain, PAST_POINTS_OPEN_MAX + 3) as (session, txgs):
        points = points_of(session, state_of)
        async with AsyncExitStack() as stack:
            for txg in txgs[:-1]:
                await stack.enter_async_context(points.kept_open(txg))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(inodes_at, points, txgs[-1])
            await until(removing.is_set)
            nursery.cancel_scope.cancel()
            may_remove.set()

        assert len(snapshots_in(tmp_path)) == points.count
        async with running(points.run):
            await trio.testing.wait_all_tasks_blocked()


async def test_points_in_time_that_are_older_than_the_retention_are_not_found(plain: Power) -> None:
    async with shipped(plain, 1) as (session, (txg,)):
        points = points_of(session)
        now_ns = plain.clock.now_ns()
        for wanted in (
            PointInTime("txg=99", txg=Txg(99)),
            PointInTime("1970-01-01", time_ns=1),
            PointInTime("tomorrow", time_ns=now_ns + 10**15),
        ):
            assert await points.find(wanted) is None
        found = await points.find(PointInTime("now", time_ns=now_ns))
        assert found is not None
        assert found.txg == txg


async def test_unreadable_point_in_time_does_not_degrade_the_mount(plain: Power) -> None:
    async with shipped(plain, 2) as (session, (first, second)):
        with pytest.raises(PastUnavailableError, match="Input/output error"):
            await inodes_at(
                points_of(session, raising(OSError(errno.EIO, "Input/output error"))), first
            )
        points = points_of(session)
        with pytest.raises(PastUnavailableError, match="wrong"):
            async with points.used(first):
                raise DatabaseError("the database of the point in time is wrong")
        del plain.store.objects[key_of(second)]
        with pytest.raises((PastUnavailableError, BrokenChainError)):
            await inodes_at(points_of(session), second)
        assert session.status.writable


async def test_point_in_time_can_be_opened_after_an_outage_ends(plain: Power) -> None:
    store = FaultyStore(plain.store)
    async with plain.session(tasks=False, store=store) as session:
        write_file(session, b"x")
        await session.shipper.ship()
        points = points_of(session)
        store.fail("get", StoreUnavailableError("changelog", 1, 0.0, "away"))
        with pytest.raises(StoreUnavailableError):
            await inodes_at(points, session.link.txg)
        assert await inodes_at(points, session.link.txg) == 2


async def test_closing_a_point_in_time_writes_no_data(plain: Power) -> None:
    """If closing a point in time wrote data, a full disk would degrade the mount."""
    async with shipped(plain, PAST_POINTS_OPEN_MAX + 1) as (session, txgs):
        points = points_of(session)
        for txg in txgs[:-1]:
            async with points.used(txg) as point:
                point.db.connection.pragma("query_only", 1)
        assert await inodes_at(points, txgs[-1])
        assert points.txgs == txgs[1:]


async def test_opening_a_point_in_time_fails_if_the_disk_has_too_little_space(
    plain: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shipped(plain, 1) as (session, (txg,)):
        size_bytes = session.volume.state_dir.database.stat().st_size
        points, disk = points_of(session), session.cache.disk
        monkeypatch.setattr(disk, "spare_bytes", lambda: size_bytes - 1)
        with pytest.raises(NoSpaceLeftError):
            await inodes_at(points, txg)
        assert snapshots_in(plain.home) == []
        monkeypatch.setattr(disk, "spare_bytes", lambda: 2 * size_bytes)
        assert await inodes_at(points, txg)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        DatabaseFullError("the disk is full"),
    ],
)
async def test_disk_that_is_full_during_a_restore_is_reported_as_full(
    plain: Power, error: Exception
) -> None:
    """If a restore fills the disk, the point in time can be opened after files were deleted."""
    async with shipped(plain, 1) as (session, (txg,)):
        errors = [error]

        def state_of(txg: Txg) -> StateDir:
            if errors:
                raise errors.pop()
            return StateDir(plain.home / f"snapshot {txg}")

        points = points_of(session, state_of)
        with pytest.raises(NoSpaceLeftError, match=f"txg {txg} .*delete other files on that disk"):
            await inodes_at(points, txg)
        assert await inodes_at(points, txg)
        with pytest.raises(NoSpaceLeftError):
            async with points.used(txg):
                raise DatabaseFullError("the disk is full")
        assert session.status.writable


async def test_number_of_waiting_requests_for_past_files_is_limited(plain: Power) -> None:
    async with shipped(plain, 1) as (session, (txg,)):
        points = points_of(session)
        async with AsyncExitStack() as waiting:
            for _ in range(PAST_WAITING_MAX):
                await waiting.enter_async_context(points.used(txg))
            with pytest.raises(BusyError):
                await inodes_at(points, txg)
            with pytest.raises(BusyError):
                await points.find(PointInTime("newest"))
        assert await inodes_at(points, txg)
    assert PAST_WAITING_MAX < WAITING_HANDLERS_MAX


async def test_opening_a_point_in_time_reserves_disk_space_for_its_database(
    plain: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space reserved for a point in time depends on its image, not on the current database."""
    async with plain.session(tasks=False) as session:
        session.db.begin()
        for number in range(300):
            dentries.add(session.db, ROOT_INO, b"%0200d" % number, write_file(session, b"x"))
        await session.imager.make()
        txg = session.link.txg
        async with plain.session("b", tasks=False, options=READ_ONLY) as other:
            image_bytes = other.volume.state_dir.database.stat().st_size
        disk = session.cache.disk
        path = session.volume.state_dir.path / "small"
        path.write_bytes(b"x" * 1000)
        state_dir = StateDir(session.volume.state_dir.path)
        state_dir.database = path
        small = replace(session.volume, state_dir=state_dir)
        points = OpenPoints(
            small, disk, lambda txg: StateDir(plain.home / f"snapshot {txg}"), nowhere
        )
        monkeypatch.setattr(disk, "spare_bytes", lambda: image_bytes // 2)
        with pytest.raises(NoSpaceLeftError):
            await inodes_at(points, txg)
        monkeypatch.setattr(disk, "spare_bytes", lambda: 2 * image_bytes)
        assert await inodes_at(points, txg) > 300
    assert snapshots_in(plain.home) == [f"snapshot {txg}"]


async def test_point_in_time_that_is_in_use_at_unmount_is_closed_later(plain: Power) -> None:
    """If a point in time has a running request at unmount, it is closed when the request ends."""
    async with shipped(plain, 1) as (session, (txg,)):
        points = points_of(session)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(points.run)
            async with points.used(txg):
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked(0.05)
                assert points.count == 1
        assert points.count == 0
        assert snapshots_in(plain.home) == []


@pytest.mark.parametrize("may_spawn", [True, False])
async def test_large_point_in_time_is_restored_in_a_separate_process(
    plain: Power, monkeypatch: pytest.MonkeyPatch, may_spawn: bool
) -> None:
    """A separate process restores a large point in time.

    No process is started if its Python interpreter is inside the mount.
    """
    started: list[str] = []
    spawn = os.posix_spawn

    def noted(path: str, *arguments: Any, **options: Any) -> int:
        started.append(path)
        return spawn(path, *arguments, **options)

    monkeypatch.setattr(os, "posix_spawn", noted)
    async with shipped(plain, 2) as (session, txgs):
        points = points_of(session, may_spawn=may_spawn, apart_bytes_min=1)
        found = await inodes_at(points, txgs[0])
        assert found == int(session.db.counters.inodes) - 1

    assert started == ([sys.executable] if may_spawn else [])
