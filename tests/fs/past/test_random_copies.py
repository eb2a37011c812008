"""Tests that trees cloned from random points in time equal the trees recorded at these times."""

import random

import pytest

from s3fs_meta.fs.slices import Slices
from s3fs_meta.model import ROOT_INO
from tests.fs.conftest import ROOT, Volume, look
from tests.fs.past.random_history import History
from tests.fs.trees.samples import assert_sound, facts
from tests.sampled import sampled

pytestmark = pytest.mark.thorough

STEPS = 60


@pytest.mark.parametrize("seed", sampled(range(4), 4))
async def test_copies_from_a_random_history_equal_the_recorded_trees(
    volume: Volume, seed: int
) -> None:
    """Copies equal the recorded trees on this host and on a host that has only the bucket."""
    chance = random.Random(seed)
    slices = Slices(cloned_names=3, directories=2, shared_blocks=3)
    async with volume.mounted(slices=slices) as fs:
        history = History(fs, volume, chance)
        acts = [history.create, history.change, history.ship, history.copy, history.forget]
        for _ in range(STEPS):
            await chance.choices(acts, (4, 6, 3, 3, 2))[0]()
            assert_sound(fs)
        await history.ship()
        await history.copy()
        await volume.evict()
        await history.compare()
        fs.xattrs.set(ROOT_INO, b"user.end", b"1", ROOT)
        await volume.upload()
        await volume.session.close()

    other = volume.elsewhere()
    async with other.mounted() as fs:
        for name, wanted in history.copies.items():
            assert await facts(fs, look(fs, name).ino) == wanted, name
        assert_sound(fs)
