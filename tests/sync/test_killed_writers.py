"""Killed writers and their successors: they never record a pack as dead while a txg needs it."""

import random

import pytest

from s3fs_meta.errors import SettingsError
from s3fs_meta.model import Ino, ObjectKey, Txg
from s3fs_meta.sync.history.snapshot_mount import open_snapshot
from s3fs_meta.sync.hooks import STEPS, TAKEOVER_STEPS, Hook
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.opening import let_go
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import TAKEOVER, Power, remove_file, write_file
from tests.sync.follower.following import FOLLOWS, READS
from tests.sync.history.readers import at, bucket_of
from tests.sync.kills import Killed

pytestmark = pytest.mark.thorough

_STEPS = (*STEPS[: STEPS.index("txg confirmed")], *TAKEOVER_STEPS, "no step")


class _Writers:
    """Hosts that write one filesystem in turn; most of them are killed."""

    def __init__(self, power: Power, seed: int) -> None:
        self._power = power
        self._rnd = random.Random(seed)
        # Maps each txg to the packs that it refers to.
        self._needed: dict[Txg, set[ObjectKey]] = {}

    async def run(self, count: int) -> None:
        """Run mounts and promotions of random hosts, each of which is killed at a random step."""
        for _ in range(count):
            host = self._rnd.choice(["a", "a", "a", "b"])
            hook = self._kill_at(self._rnd.choice(_STEPS))
            try:
                await (self._promote if self._rnd.random() < 0.3 else self._mount)(host, hook)
            except BaseException as exc:  # noqa: ASYNC103 - the simulated kill is expected
                if not _is_kill(exc):
                    raise
            await self._note_needed()

    def _kill_at(self, step: str) -> Hook:
        left = self._rnd.randrange(3)

        def hook(reached: str) -> None:
            nonlocal left
            left -= reached == step
            if left < 0:
                raise Killed(step)

        return hook

    async def _mount(self, host: str, hook: Hook) -> None:
        options = OpenOptions(force_takeover=True, hook=hook)
        async with self._power.session(host, options=options, hook=hook, tasks=False) as session:
            await self._write(session)

    async def _promote(self, host: str, hook: Hook) -> None:
        """Promote a follower, which becomes a writer with the same state directory."""
        name = f"{host} follows"
        try:
            async with self._power.session(
                name, options=READS, session_options=FOLLOWS, hook=hook, tasks=False
            ) as session:
                await session.promote(force=True)
                await self._write(session)
        except SettingsError:  # The previous mount of this host has left unshipped changes.
            await self._mount(name, hook)

    async def _write(self, session: Session) -> None:
        rnd = self._rnd
        self.require_needed(session)
        for _ in range(rnd.randrange(5)):
            for _ in range(rnd.randrange(4)):
                write_file(session, rnd.randbytes(rnd.randrange(1, 300)))
            found = session.db.inodes.all("SELECT ino FROM inodes WHERE ino > 1")
            many = rnd.choice([0, len(found), rnd.randrange(len(found) + 1)])
            for (ino,) in rnd.sample(found, many):
                remove_file(session, Ino(ino))
            session.durability.commit()
            for work, share in (
                (session.compactor.run_once, 0.5),
                (session.flush, 0.6),
                (session.imager.make, 0.15),
                (session.leveler.make_due, 0.15),
            ):
                if rnd.random() < share:
                    await work()
        await self._note_needed()
        self.require_needed(session)

    async def _note_needed(self) -> None:
        """Record the packs that each new txg needs, according to the bucket alone."""
        bucket = await bucket_of(self._power)
        newest = await bucket.points.newest()
        for number in range(max(self._needed, default=0) + 1, newest.txg + 1):
            txg = Txg(number)
            place = StateDir(self._power.home / "past")
            volume = await open_snapshot(bucket, place, OpenOptions(), at(txg))
            rows = volume.db.all("SELECT DISTINCT object_key FROM packs JOIN blocks USING (pack)")
            self._needed[txg] = {ObjectKey(str(key)) for (key,) in rows}
            volume.db.close()
            let_go(volume)

    def require_needed(self, session: Session) -> None:
        """Require that on this host no pack is dead before the last txg that needs it."""
        died: dict[ObjectKey, Txg | None] = dict(
            session.db.all("SELECT object_key, died_txg FROM packs")
        )
        for txg, needed in self._needed.items():
            for key in needed:
                end = died[key]
                assert end is None or end > txg


def _is_kill(exc: BaseException) -> bool:
    inner = getattr(exc, "exceptions", None)
    return isinstance(exc, Killed) if inner is None else all(map(_is_kill, inner))


@pytest.mark.parametrize("seed", [3, 15, 19])
async def test_no_pack_is_marked_dead_before_the_last_txg_that_needs_it(
    power: Power, seed: int
) -> None:
    """The rows of a new host and of hosts that were offline list no needed pack as dead."""
    writers = _Writers(power, seed)
    await writers.run(8)
    for host in ("new", "a", "b"):
        async with power.session(host, options=TAKEOVER, tasks=False) as session:
            await session.flush_at_end()
            writers.require_needed(session)
