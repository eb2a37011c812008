"""Kills between the writes of keep and drop: each listed point is complete."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from typing_extensions import override

from s3fs_meta.check.report import Mode, Report
from s3fs_meta.check.run import Examined, FsckOptions, check_filesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag, ObjectStore
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import TAKEOVER, Power
from tests.sync.kept import Files, empty, files_at, fill, forget
from tests.sync.kills import Killed

pytestmark = pytest.mark.thorough


class KillingStore(FaultyStore):
    """A store that simulates a kill before or after one of its writes."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.writes_left = -1  # The value -1 means that no write is interrupted.
        self.is_after = False

    @asynccontextmanager
    async def _write(self) -> AsyncIterator[None]:
        self.writes_left -= 1
        if self.writes_left == 0 and not self.is_after:
            raise Killed
        yield
        if self.writes_left == 0:
            raise Killed

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        async with self._write():
            return await self.inner.create(key, data)

    @override
    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: ETag) -> ETag:
        async with self._write():
            return await self.inner.replace(key, data, etag)

    @override
    async def delete(self, keys: Sequence[ObjectKey]) -> None:
        async with self._write():
            await self.inner.delete(keys)


def _two_files(session: Session) -> Files:
    files: Files = {}
    fill(session, files, b"1" * 3000, b"2" * 3000)
    return files


async def require_clean(session: Session) -> None:
    """Require that fsck --deep finds no fault except the missing names of the test files."""
    session.durability.commit()
    opened = session.volume
    examined = Examined(opened.db, opened.store, opened.keyring)
    wanted = FsckOptions(repair=Mode.REPORT, deep=True)
    report = await check_filesystem(examined, wanted, Report(), SystemClock())
    assert set(report.broken) <= {"I26"}


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", [1, 2, 3], ids=["superblock", "its copy", "the point"])
async def test_kill_during_the_keep_command_leaves_a_complete_kept_point_or_none(
    power: Power, number: int, is_after: bool
) -> None:
    """A killed keep leaves no point, or a complete point and its feature flag in the superblock."""
    await power.retain(0)
    store = KillingStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        files = _two_files(session)
        await session.flush()
        store.writes_left, store.is_after = number, is_after
        with pytest.raises(Killed):
            await PointKeeper(session).keep("a")
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        kept = await session.reclaimer.kept_points()
        assert kept.unreadable == ()
        assert len(kept.points) == int((number, is_after) == (3, True))
        features = (await power.keys()).superblock.features
        assert superblock_codec.KEPT_POINTS in features or not kept.points
        if not kept.points:
            await PointKeeper(session).keep("a")
        state = dict(files)
        empty(session, files)
        await forget(session)
        assert await files_at(power, "a") == state
        await require_clean(session)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
async def test_kill_during_the_drop_command_leaves_a_complete_kept_point_or_none(
    power: Power, is_after: bool
) -> None:
    await power.retain(0)
    store = KillingStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        files = _two_files(session)
        await PointKeeper(session).keep("a")
        state = dict(files)
        empty(session, files)
        await forget(session)
        store.writes_left, store.is_after = 1, is_after
        with pytest.raises(Killed):
            await PointKeeper(session).drop(["a"])
    async with power.session("b", options=TAKEOVER, tasks=False) as session:
        if not is_after:
            assert await files_at(power, "a") == state
            await PointKeeper(session).drop(["a"])
        await forget(session)
        assert not any(key.startswith("kept/") for key in power.store.objects)
        await require_clean(session)
