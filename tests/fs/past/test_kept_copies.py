"""Tests of copies from kept points older than the retention, during garbage collection."""

import random

import pytest

from s3fs_meta.errors import (
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
    UnexpectedStoreError,
)
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.meta.tables import packs
from s3fs_meta.model import ROOT_INO, Txg
from s3fs_meta.sync.administration.keeping import PointKeeper
from tests.fs.conftest import Volume, look, make_directory, make_file
from tests.fs.past.copying import (
    SMALL,
    Copier,
    packs_of,
    pass_images,
    remove,
    retain_nothing,
    shipped,
)
from tests.fs.past.random_history import Facts, History
from tests.fs.trees.samples import COPY, assert_sound, facts, settled
from tests.sampled import sampled

pytestmark = pytest.mark.thorough

STEPS = 50


class KeptHistory(History):
    """A filesystem without retention that has some kept points (named txgs)."""

    def __init__(self, fs: Filesystem, volume: Volume, chance: random.Random) -> None:
        super().__init__(fs, volume, chance)
        self.kept: dict[str, tuple[Txg, Facts]] = {}

    async def keep(self) -> None:
        """Make a kept point of the current state."""
        name = self._name(b"kept").decode().replace(" ", "-")
        point = await PointKeeper(self.volume.session).keep(name)
        self.kept[name] = point.txg, await facts(self.fs, self.top)

    async def drop(self) -> None:
        """Drop a kept point."""
        if len(self.kept) > 1:
            name = self.chance.choice(list(self.kept))
            await PointKeeper(self.volume.session).drop([name])
            del self.kept[name]

    async def copy_kept(self) -> None:
        """Copy the tree as it was at a kept point."""
        if self.kept:
            txg, wanted = self.chance.choice(list(self.kept.values()))
            name = self._name(b"copy")
            await self.copier.copy(txg, target=CloneTarget(ROOT_INO, name))
            self.copies[name] = wanted

    async def collect(self) -> None:
        """Let all points in time expire, and delete packs that no kept point needs."""
        await pass_images(self.fs, self.volume, 2)
        await self.volume.session.reclaimer.reclaim_all()


async def _work(history: KeptHistory) -> None:
    """Run random operations; at the end only the last kept point remains."""
    acts = {
        history.create: 4,
        history.change: 6,
        history.keep: 2,
        history.drop: 1,
        history.copy_kept: 3,
        history.forget: 2,
        history.collect: 2,
    }
    for _ in range(STEPS):
        await history.chance.choices(list(acts), list(acts.values()))[0]()
        assert_sound(history.fs)
    await history.keep()
    await history.collect()
    await history.volume.evict()
    await history.compare()
    for name in list(history.kept)[:-1]:
        await PointKeeper(history.volume.session).drop([name])
        del history.kept[name]


@pytest.mark.parametrize("seed", sampled(range(4), 4))
async def test_copies_from_kept_points_survive_garbage_collection(
    volume: Volume, seed: int
) -> None:
    """Copies stay intact on two hosts while kept points are dropped and packs are compacted."""
    await retain_nothing(volume)
    slices = Slices(cloned_names=3, directories=2, shared_blocks=3)
    async with volume.mounted(slices=slices) as fs:
        history = KeptHistory(fs, volume, random.Random(seed))
        await _work(history)
        await history.collect()
        await volume.evict()
        await history.compare()
        keys = {row.object_key for row in packs.iterate(fs.db)}
        stored = volume.memory.objects
        assert {key for key in stored if key.startswith("pack/")} == keys
        await history.copier.close()
        await volume.session.close()

    other = volume.elsewhere()
    async with other.mounted() as fs:
        for copied, wanted in history.copies.items():
            assert await facts(fs, look(fs, copied).ino) == wanted
        [(txg, wanted)] = history.kept.values()
        await Copier(fs, other.session).copy(txg)
        assert await facts(fs, look(fs, b"copy").ino) == wanted
        assert_sound(fs)


async def _fail_to_copy(fs: Filesystem, volume: Volume, txg: Txg, error: StoreError) -> None:
    """Copy the tree of a txg, and let the store fail when the copy uploads its first packs."""
    copier = Copier(fs, volume.session, revived_packs_max=2)

    async def ship() -> None:
        volume.store.down = error
        try:
            await volume.session.shipper.ship()
        finally:
            volume.store.down = None

    copier.ship = ship
    with pytest.raises(StoreError):
        await copier.copy(txg)
    assert fs.lookup(*COPY) is None
    assert not fs.db.held_packs
    assert volume.session.status.writable
    assert_sound(fs)


@pytest.mark.parametrize(
    "error",
    sampled(
        [
            StoreUnavailableError("pack/", 3, 30.0, "timeout"),
            UnexpectedStoreError("pack/", "ENOSPC"),
            StoreAccessError("pack/", "AccessDenied", "check the policy of the bucket"),
        ],
        3,
    ),
    ids=["timeout", "full", "denied"],
)
@pytest.mark.parametrize("after", ["same mount", "kill", "takeover"])
async def test_bucket_failure_during_a_copy_of_a_kept_point_loses_no_data(
    volume: Volume, error: StoreError, after: str
) -> None:
    """After a failed copy, the kept point is complete and a later copy succeeds."""
    await retain_nothing(volume)
    async with volume.mounted(slices=SMALL) as fs:
        top = make_directory(fs, b"tree")
        for number in range(6):
            await fs.write(make_file(fs, b"%d" % number, top), 0, b"content %d" % number)
            await shipped(volume)
        wanted = await facts(fs, top)
        point = await PointKeeper(volume.session).keep("before")
        await remove(fs, b"tree")
        await pass_images(fs, volume)
        assert volume.session.link.floor > point.txg
        await _fail_to_copy(fs, volume, point.txg, error)
        if after == "same mount":
            await settled(fs)
            await _copies_again(fs, volume, point.txg, wanted)
    if after == "same mount":
        return
    if after == "takeover":
        volume.home /= "elsewhere"
        volume.home.mkdir()
    async with volume.mounted(takes_over=after == "takeover") as fs:
        fs.adopt_orphans()
        await settled(fs)
        await _copies_again(fs, volume, point.txg, wanted)


async def _copies_again(fs: Filesystem, volume: Volume, txg: Txg, wanted: Facts) -> None:
    """Collect garbage, copy and drop the kept point, collect garbage again, and read all files."""
    assert fs.lookup(*COPY) is None
    await pass_images(fs, volume)
    copier = Copier(fs, volume.session, revived_packs_max=2)
    await copier.copy(txg)
    await PointKeeper(volume.session).drop(["before"])
    await pass_images(fs, volume)
    await volume.evict()
    assert await facts(fs, look(fs, COPY.name).ino) == wanted
    assert all(live and not died for live, died in packs_of(fs).values())
    assert_sound(fs)
