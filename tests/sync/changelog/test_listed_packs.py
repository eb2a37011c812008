"""The packs that a changelog lists: each new or changed location is listed once."""

import random

import pytest
import trio

from s3fs_meta.meta.placements import Placed
from s3fs_meta.meta.tables import block_map, damage_marks, pending
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockIndex, Ino
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload import healing
from tests.sync.chain.stored_changelogs import changelogs
from tests.sync.conftest import Power, plain, remove_file, write_file

pytestmark = pytest.mark.thorough

__all__ = ["plain"]


async def test_changelogs_list_each_new_block_and_pack_once(plain: Power) -> None:
    """A block that is uploaded after a cut is listed in one changelog, not in two."""
    async with plain.session("a", tasks=False) as session:
        for number in range(3):
            for part in range(3):
                write_file(session, b"%d %d" % (number, part) * 500)
            await session.flush()
        await session.flush_at_end()

        made = changelogs(plain, session.volume.keyring)
        listed = [one.block for changelog in made for one in changelog.section.locations]
        noted = [one.pack for changelog in made for one in changelog.packs]
        assert listed == list(range(1, 10))
        assert noted == [1, 2, 3]
        assert pending.pack_news(session.db.connection) == []


async def test_block_healed_after_a_cut_is_listed_in_the_next_changelog(plain: Power) -> None:
    """A block is healed into a pack that the unfinished changelog lists already."""
    written: list[Ino] = []

    def hook(step: str) -> None:
        if step != "txg uploaded" or len(written) < 2 or damage_marks.exist(session.db):
            return
        old, new = (block_map.locate(session.db, ino, BlockIndex(0)) for ino in written)
        assert old is not None
        assert old.pack == 1
        assert old.hash is not None
        session.damage.mark(Mark(old.pack, None), "is damaged")
        assert new is not None
        assert new.pack == 2
        assert new.pack_offset is not None
        assert new.stored_bytes is not None
        equal = Placed(new.block, old.hash, new.pack, new.pack_offset, new.stored_bytes)
        assert healing.move_damaged(session.db, equal) == old.block

    async with plain.session("a", tasks=False, hook=hook) as session:
        for content in (b"old" * 1000, b"new" * 1000):
            written.append(write_file(session, content))
            await session.flush()
        assert pending.pack_news(session.db.connection) == [2]
        await session.flush_at_end()
        await session.close()
    async with plain.session("b", tasks=False) as session:
        assert session.db.all("SELECT block, pack FROM blocks ORDER BY block") == [(1, 2), (2, 2)]


class _Work:
    """Random writes, uploads, compaction, damage and healing that run concurrently."""

    def __init__(self, session: Session, dice: random.Random) -> None:
        self._session = session
        self._dice = dice
        self._files: list[Ino] = []
        self._contents = [dice.randbytes(size) for size in (300, 3000, 9000) for _ in range(4)]

    async def run(self) -> None:
        """Run all kinds of work until the random writer has finished."""
        async with trio.open_nursery() as nursery:
            for work in (self._write, self._ship, self._upload, self._compact, self._damage):
                nursery.start_soon(work)

    async def _pause(self, s_max: float) -> None:
        await trio.sleep(s_max * self._dice.random())

    async def _write(self) -> None:
        for _ in range(12):
            if self._files and self._dice.random() < 0.3:
                remove_file(self._session, self._files.pop())
            else:
                content = self._dice.choice([*self._contents, self._dice.randbytes(2000)])
                self._files.append(write_file(self._session, content))
            await self._pause(0.001)

    async def _ship(self) -> None:
        for _ in range(5):
            await self._pause(0.004)
            await self._session.shipper.ship(anyway=self._dice.random() < 0.3)

    async def _upload(self) -> None:
        for _ in range(6):
            await self._pause(0.003)
            batch = await self._session.uploader.sealer.next_batch(0.0)
            if batch:
                await self._session.uploader.acquire(batch)
                await self._session.uploader.ship_and_release(batch)

    async def _compact(self) -> None:
        await self._pause(0.02)
        await self._session.compactor.run_once()

    async def _damage(self) -> None:
        await self._pause(0.02)
        used = self._session.db.all(
            "SELECT DISTINCT pack FROM blocks WHERE pack IS NOT NULL AND refs > 0"
        )
        if used:
            self._session.damage.mark(Mark(self._dice.choice(used)[0], None), "is damaged")
            await self._session.healer.heal()


def listed(session: Session) -> list[tuple[object, ...]]:
    """Return the locations of all blocks that files use, and the packs of these blocks."""
    return session.db.all(
        "SELECT block, refs, plain_bytes, hash, pack, pack_offset, stored_bytes FROM blocks"
        " WHERE refs > 0 ORDER BY block"
    ) + session.db.all("SELECT pack, object_key, state FROM packs WHERE live_bytes > 0")


@pytest.mark.parametrize("seed", range(12))
async def test_another_host_finds_every_location_of_random_concurrent_work(
    plain: Power, seed: int
) -> None:
    """Uploads, compaction and healing change locations both before and after a concurrent cut."""
    async with plain.session("a", tasks=False) as session:
        work = _Work(session, random.Random(seed))
        for _ in range(4):
            await work.run()
        session.db.begin()
        await session.flush_at_end()
        expected = listed(session)
        await session.close()
    async with plain.session("b", tasks=False) as session:
        assert listed(session) == expected
