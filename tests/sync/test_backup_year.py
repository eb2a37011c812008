"""A simulated year of the nightly backup of docs/guide/backup.md: every kept point is complete.

The test makes the changes that rsync would make, on a filesystem without FUSE. Upkeep tasks run as
in a mount, with a clock that the test sets. At the end of each month another host takes over,
``fsck --deep`` checks the bucket and the state of that host, and the test restores every kept point
to a directory and compares it.
"""

import os
import random
import shutil
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from s3fs_meta.check.report import Report
from s3fs_meta.check.run import CacheDirectory, Examined, FsckOptions, check_filesystem
from s3fs_meta.codec import kept_point as kept_codec
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.export.copier import Copier
from s3fs_meta.export.from_snapshot import Restoring
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.limits import MIB
from s3fs_meta.model import ROOT_INO, AccessTime, Caller, Ino, PointInTime, Txg
from s3fs_meta.options.settings import FilesystemOptions
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.history.kept.kept_expiry import ExpiringPoint, Policy, judge
from s3fs_meta.sync.history.snapshot_mount import open_snapshot, read_bucket
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import let_go
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.uncached_reads import UncachedReader
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import HandClock, Power, keys_of, unmount

pytestmark = pytest.mark.thorough

DAY = 86_400
MONTH = 30  # The number of nights between two checks of the backup.
POLICY = Policy(daily=7, weekly=5, monthly=12)
PERIODS = (("%Y-%m-%d", POLICY.daily), ("%G-%V", POLICY.weekly), ("%Y-%m", POLICY.monthly))
ROOT = Caller(0, 0, 0o022, 1)

Source = dict[bytes, bytes]  # Maps each path to its content.


class _Mirror:
    """The directory ``latest`` of a backup, which is updated as ``rsync -a --delete`` does."""

    def __init__(self, session: Session) -> None:
        self._fs = Filesystem(
            session.db,
            session.cache,
            session.status,
            session.volume.clock,
            FilesystemOptions(access_time=AccessTime.NEVER),
            sync_file=session.durability.sync_file,
        )

    async def update(self, before: Source, after: Source) -> None:
        """Write changed files under temporary names and rename them; remove deleted files."""
        latest = self._directory(ROOT_INO, b"latest")
        for path in sorted(before.keys() - after.keys()):
            folder, _, name = path.partition(b"/")
            self._fs.namespace.unlink(self._directory(latest, folder), name)
        for path, content in sorted(after.items()):
            if before.get(path) != content:
                folder, _, name = path.partition(b"/")
                await self._replace(self._directory(latest, folder), name, content)

    def _directory(self, parent: Ino, name: bytes) -> Ino:
        found = self._fs.namespace.lookup(parent, name)
        found = found or self._fs.namespace.make_directory(parent, name, 0o755, ROOT)
        return found.ino

    async def _replace(self, folder: Ino, name: bytes, content: bytes) -> None:
        temporary = b".%s.Kx3Zq1" % name
        ino = self._fs.namespace.make_node(folder, temporary, 0o100644, ROOT).ino
        for start in range(0, len(content), MIB):
            await self._fs.write(ino, start, content[start : start + MIB])
        self._fs.namespace.rename(folder, temporary, folder, name, 0)


class _Backup:
    """A backup of one directory, and the kept points that should be in the bucket."""

    def __init__(self, power: Power, clock: HandClock) -> None:
        self._power = power
        self._clock = clock
        self._rnd = random.Random(15)
        self._source: Source = {}
        self._copied: Source = {}
        self.states: dict[str, Source] = {}  # Maps each kept point to its expected files.
        self._nightly: dict[str, KeptPoint] = {}  # The kept points that may expire, oldest first.
        self.dropped = self.moved = self.fscks = self.restores = self.most_bytes = 0

    # --- one night of the backup ---------------------------------------------------------------

    async def night(self, session: Session, number: int) -> None:
        """Simulate one day: users change files, a point is kept and the mount does its upkeep."""
        if number % 9 != 8:
            self._work_a_day(number)
        await _Mirror(session).update(self._copied, self._source)
        self._copied = dict(self._source)
        keeper = PointKeeper(session)
        if number % MONTH == 10:
            await self._keep_last_night(keeper, number)
        name = datetime.fromtimestamp(self._clock.ns / 1e9, timezone.utc).strftime("auto-%FT%T")
        self._nightly[name] = await keeper.keep(name, auto=True)
        self.states[name] = dict(self._copied)
        await self._expire(session, keeper)
        await self._run_upkeep(session)
        self._clock.pass_by(DAY)

    def _work_a_day(self, number: int) -> None:
        """Change a few files, remove at most one file, and write a large file every 20 days."""
        rnd, source = self._rnd, self._source
        for _ in range(3):
            folder = rnd.choice((b"mail", b"projects", b"pictures"))
            source[b"%s/%d" % (folder, rnd.randrange(12))] = rnd.randbytes(rnd.randrange(40_000))
        for path in rnd.sample(sorted(source), rnd.randrange(2)):
            del source[path]
        if number % 20 == 0:
            source[b"pictures/film"] = rnd.randbytes(2 * MIB + number)
        source[b"projects/log"] = source.get(b"projects/log", b"")[-9000:] + b"night %d\n" % number

    async def _keep_last_night(self, keeper: PointKeeper, number: int) -> None:
        """Keep the last automatic point under a second name, by its txg."""
        last, point = list(self._nightly.items())[-1]
        name = f"month-{number // MONTH}"
        await keeper.keep(name, PointInTime(f"txg={point.txg}", txg=point.txg))
        self.states[name] = self.states[last]

    async def _expire(self, session: Session, keeper: PointKeeper) -> None:
        """Drop points as ``keep --expire`` does; compare the remaining points with the policy."""
        points = (await session.reclaimer.kept_points()).points
        facts = [
            ExpiringPoint(one.key, one.txg, one.created_ns, one.kept_ns, one.auto) for one in points
        ]
        dropped = {one.key for one, why in judge(facts, POLICY, timezone.utc) if not why}
        gone = [point for point in points if point.key in dropped]
        assert self._nightly.keys() - {point.name for point in gone} == self._staying()
        await keeper.drop([point.key for point in gone])
        for point in gone:
            del self._nightly[point.name], self.states[point.name]
        self.dropped += len(gone)

    def _staying(self) -> set[str]:
        """Return the last point of each recent period, and the oldest if there are few periods."""
        stay: set[str] = set()
        for form, count in PERIODS:
            last = {
                datetime.fromtimestamp(point.created_ns / 1e9, timezone.utc).strftime(form): name
                for name, point in self._nightly.items()
            }
            stay.update(list(last.values())[-count:])
            if len(last) < count:
                stay.add(next(iter(self._nightly)))
        return stay

    async def _run_upkeep(self, session: Session) -> None:
        """Run the background tasks of a mount for one day."""
        if await session.image_is_due():
            await session.make_image()
            self.moved += await session.compactor.run_once()
        await session.leveler.make_due()
        await session.indexer.make_due()
        await session.reclaimer.run()
        self.most_bytes = max(self.most_bytes, _stored_bytes(self._power))
        assert (session.reclaimer.last_error, session.compactor.last_error) == ("", "")

    # --- the last day of a month ---------------------------------------------------------------

    async def fsck(self, session: Session) -> None:
        """Require that ``fsck --deep`` finds no fault."""
        opened = session.volume
        cache = CacheDirectory(opened.state_dir.blocks, opened.state_dir.tmp)
        examined = Examined(opened.db, opened.store, opened.keyring, cache)
        report = await check_filesystem(examined, FsckOptions(deep=True), Report(), self._clock)
        assert report.broken == []
        assert report.exit_status == 0
        self.fscks += 1

    async def compare(self) -> None:
        """Restore every kept point from the bucket alone; compare it with the expected files."""
        for name, state in self.states.items():
            assert await self._restored(name) == state
            self.restores += 1

    def is_kept_below(self, floor: Txg) -> bool:
        """Return True if a kept point is older than the retention floor."""
        names = map(kept_codec.parse_key, keys_of(self._power, kept_codec.PREFIX))
        return any(name is not None and name.txg < floor for name in names)

    async def _restored(self, name: str) -> Source:
        bucket = await read_bucket(
            self._power.store, self._power.remembered("-"), self._power.secret, self._clock
        )
        wanted, home = PointInTime(name, kept=name), StateDir(self._power.home / "past")
        volume = await open_snapshot(bucket, home, OpenOptions(), wanted)
        target = self._power.home / "restored"
        target.mkdir()
        try:
            assert volume.notices == ()
            # UncachedReader reads only the bucket, which must contain the packs of the point.
            reader = UncachedReader(volume.db, volume.store, volume.keyring)
            restoring = Restoring(volume.db, Copier(volume.db, reader, target), no_progress)
            await restoring.copy([])
            assert restoring.tally.incomplete_files == 0
            return dict(_files_below(target / "latest"))
        finally:
            volume.db.close()
            let_go(volume)
            shutil.rmtree(target)


def _files_below(top: Path) -> Iterator[tuple[bytes, bytes]]:
    for path in top.rglob("*"):
        if path.is_file():
            yield os.fsencode(path.relative_to(top)), path.read_bytes()


async def _pass_nights(power: Power, clock: HandClock, nights: int) -> _Backup:
    """Make a backup every night; each month another host writes."""
    await power.retain(2 * DAY)
    backup = _Backup(power, clock)
    for first in range(0, nights, MONTH):
        async with power.session("ab"[first // MONTH % 2], tasks=False) as session:
            await backup.fsck(session)
            for number in range(first, min(first + MONTH, nights)):
                await backup.night(session, number)
            floor = session.link.floor
            await unmount(session)
        await backup.compare()
        assert backup.is_kept_below(floor)
    async with power.session("c", tasks=False) as session:
        await backup.fsck(session)
        await _end(power, clock, session, backup)
        await backup.fsck(session)
    return backup


async def _end(power: Power, clock: HandClock, session: Session, backup: _Backup) -> None:
    """Drop all points; require that only objects of the current state remain."""
    before = _stored_bytes(power)
    await PointKeeper(session).drop(list(backup.states))
    for _ in range(3):
        clock.pass_by(3 * DAY)
        await _Mirror(session).update({}, {b"mail/last": b"%d" % clock.ns})
        await session.make_image()
    await session.reclaimer.reclaim_all()
    assert keys_of(power, "kept/") == []
    assert len(keys_of(power, "changelog/")) < 20
    assert _stored_bytes(power) < before / 2


def _stored_bytes(power: Power) -> int:
    return sum(len(power.store.objects[key]) for key in keys_of(power, "pack/"))


async def test_all_kept_points_of_six_weeks_of_backups_can_be_restored(
    power: Power, clock: HandClock
) -> None:
    backup = await _pass_nights(power, clock, 42)
    assert backup.dropped > 20
    assert backup.moved


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_all_kept_points_of_a_year_of_backups_can_be_restored(
    power: Power, clock: HandClock
) -> None:
    backup = await _pass_nights(power, clock, 365)
    assert backup.fscks == 15
    assert backup.restores > 12 * 20
    # Some of the 7 days, 5 weeks and 12 months have the same last night.
    assert len(backup.states) == 12 + 20
    assert backup.dropped > 300
    assert backup.moved
