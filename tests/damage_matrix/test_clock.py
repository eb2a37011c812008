"""Tests of wrong clocks and clock jumps during a mount, which must not lose history.

The host may refuse to mount, or may mount and delete no history. Afterwards, a host with a correct
clock finds every earlier point in time by its number and by its time.
"""

from pathlib import Path
from typing import Final

import pytest

from s3fs_meta.clock import SystemClock
from s3fs_meta.model import PointInTime
from tests.damage_matrix import entrances
from tests.damage_matrix.entrances import Cell, Result
from tests.damage_matrix.oracle import differences
from tests.damage_matrix.world import Host, World, Worlds, bucket_of, host

HOUR_NS: Final = 3_600_000_000_000
YEAR_NS: Final = 365 * 24 * HOUR_NS
OFFSETS: Final = {"-10y": -10 * YEAR_NS, "-1h": -HOUR_NS, "+1h": HOUR_NS, "+10y": 10 * YEAR_NS}


class WrongClock:
    """A clock whose time differs from the correct time by an offset."""

    def __init__(self, offset_ns: int) -> None:
        self.offset_ns = offset_ns
        self._right = SystemClock()

    def now_ns(self) -> int:
        """Return the time of the wrong clock."""
        return self._right.now_ns() + self.offset_ns


async def _use(mounted: Host, name: bytes) -> None:
    """Write a file, make an image and run reclaim, so that the retention floor rises."""
    await mounted.write(name, b"content of " + name)
    await mounted.session.make_image()
    await mounted.session.reclaimer.run()


def _at_wrong_time(cell: Cell, clock: WrongClock, jump_ns: int) -> Result:
    async def body(result: Result) -> None:
        async with (
            cell.store() as store,
            host(store, cell.state, encrypted=cell.world.encrypted, clock=clock) as mounted,
        ):
            await _use(mounted, b"before")
            clock.offset_ns += jump_ns
            for name in (b"one", b"two", b"three"):
                await _use(mounted, name)
            result.wrote = True

    return cell.run(body)


def _at_right_time(cell: Cell) -> Result:
    """Write on a host with a correct clock; record whether the new txg is found by its time."""

    async def body(result: Result) -> None:
        async with cell.opened() as mounted:
            await _use(mounted, b"right")
            result.txg = mounted.session.link.txg
            clock = SystemClock()
            async with cell.store() as store:
                encrypted = cell.world.encrypted
                bucket = await bucket_of(store, encrypted=encrypted, state=cell.state)
                # Two hours is the largest accepted clock error.
                now_ns = clock.now_ns() + 2 * HOUR_NS
                found = await bucket.points.find(PointInTime("now", now_ns), now_ns)
                result.wrote = found.txg == result.txg

    return cell.run(body)


def _times(cell: Cell, world: World) -> Result:
    """Search every recorded point in time by its time; report each point that is not found."""

    async def body(result: Result) -> None:
        clock = SystemClock()
        async with cell.store() as store:
            bucket = await bucket_of(store, encrypted=world.encrypted, state=cell.state)
            for txg, time_ns in world.times.items():
                found = await bucket.points.find(PointInTime("then", time_ns), clock.now_ns())
                if found.txg != txg:
                    result.said += f"a search for the time of txg {txg} finds txg {found.txg}\n"

    return cell.run(body)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("jumps", [False, True], ids=["wrong", "jumps"])
@pytest.mark.parametrize("offset", OFFSETS)
def test_mount_with_a_wrong_clock_loses_no_history(
    worlds: Worlds, tmp_path: Path, offset: str, jumps: bool, encrypted: bool
) -> None:
    """Every recorded point in time keeps its content, and a host with a correct clock can write."""
    world = worlds[encrypted]
    cell = Cell(world, world.objects, tmp_path)
    cell.bucket.write(world.objects)
    wrong = OFFSETS[offset]

    result = _at_wrong_time(cell, WrongClock(0 if jumps else wrong), wrong if jumps else 0)

    assert result.wrote or "clock" in result.said, result.said
    after = cell.bucket.read()
    # Retention may delete one of three images close in time, but no changelog.
    gone = [key for key in world.objects if key not in after and not key.startswith("image/")]
    assert gone == []
    cell.program.cachedir.rename(tmp_path / "gone")
    right = _at_right_time(cell)
    assert right.status == 0, right.said
    assert right.wrote, "the txg of a host with a correct clock is not found by its time"
    found = entrances.points_of(cell)
    for txg, tree in world.points.items():
        seen = found.points[txg]
        assert not isinstance(seen, str), f"txg {txg}: {seen}"
        assert not differences(tree, seen), txg
    times = _times(cell, world)
    assert (times.status, times.said) == (0, "")
