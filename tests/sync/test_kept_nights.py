"""A nightly job that keeps points, together with retention, compaction and reclaim."""

import random

import pytest

from s3fs_meta.meta.tables import packs
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.session import Session
from tests.sync.conftest import HandClock, Power, keys_of, remove_file
from tests.sync.kept import Files, files_at, fill, forget

pytestmark = pytest.mark.thorough

DAY = 86_400


class _Nights:
    """A nightly job that keeps points of a changing filesystem."""

    def __init__(self, power: Power, session: Session) -> None:
        self._power = power
        self._session = session
        self._keeper = PointKeeper(session)
        self._rnd = random.Random(11)
        self._files: Files = {}
        self.states: dict[str, Files] = {}

    async def change(self) -> None:
        """Write and remove files in four txgs."""
        rnd = self._rnd
        for _ in range(4):
            fill(self._session, self._files, *(rnd.randbytes(rnd.randrange(1, 900)) for _ in "ab"))
            for ino in rnd.sample(list(self._files), min(len(self._files), rnd.randrange(3))):
                remove_file(self._session, ino)
                del self._files[ino]
            await self._session.flush()

    async def upkeep(self) -> None:
        """Compact packs, merge changelogs and make an image."""
        await self._session.compactor.run_once()
        await self._session.leveler.make_due()
        await self._session.imager.make()

    async def keep(self, name: str) -> None:
        """Keep the current state; if more than five points exist, drop a random point."""
        await self._keeper.keep(name, auto=True)
        self.states[name] = dict(self._files)
        if len(self.states) > 5:
            await self.drop(self._rnd.choice(list(self.states)))

    async def drop(self, name: str) -> None:
        """Drop a kept point."""
        await self._keeper.drop([name])
        del self.states[name]

    async def compare(self) -> None:
        """Require that every kept state can be restored from the bucket."""
        for name, state in self.states.items():
            assert await files_at(self._power, name) == state


async def test_kept_points_of_three_weeks_can_be_restored(power: Power, clock: HandClock) -> None:
    """Points are dropped in random order, and all remaining points can be restored."""
    await power.retain(2 * DAY)
    async with power.session("a", tasks=False) as session:
        job = _Nights(power, session)
        for night in range(21):
            await job.change()
            if night % 3 == 0:
                await job.upkeep()
            if night % 2 == 0:
                await job.keep(f"n{night}")
            clock.pass_by(DAY)
            await session.reclaimer.reclaim_all()
            if night % 7 == 6:
                await job.compare()
        await job.compare()
        assert len(job.states) == 5
        for name in list(job.states):
            await job.drop(name)
        for _ in range(3):
            clock.pass_by(3 * DAY)
            await forget(session)
        alive = sum(row.live_bytes > 0 for row in packs.iterate(session.db))
        assert len(keys_of(power, "pack/")) <= alive + 10
        assert keys_of(power, "kept/") == []
