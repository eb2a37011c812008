"""Revived packs: a dead pack is used again, because a file was copied from the past."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from s3fs_meta.export import quarantine_list
from s3fs_meta.export.from_quarantine import KeptContent
from s3fs_meta.export.quarantine_list import Kept
from s3fs_meta.limits import LEVEL_FAN_OUT
from s3fs_meta.meta.db.attached import attached
from s3fs_meta.meta.tables import block_map, inodes, packs, pending
from s3fs_meta.meta.trees import past_content
from s3fs_meta.model import BlockIndex, Ino, Txg
from s3fs_meta.sync.administration.keeping import PointKeeper
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.fs.past.copying import points_of
from tests.sync.conftest import TAKEOVER, Power, read_file, remove_file, unmount, write_file
from tests.sync.kept import forget
from tests.sync.kills import KillAt, Killed

pytestmark = pytest.mark.thorough


CONTENT = b"content" * 1000


async def ship(session: Session) -> Txg:
    """Ship all changes and return the new txg."""
    await session.shipper.ship(anyway=True)
    return session.link.txg


def share(session: Session, txg: Txg, old: Ino) -> Ino:
    """Create a file that shares a block of a file in the attached database of a past txg."""
    db = session.db
    db.begin()
    past_content.begin(db)
    new = inodes.create(db, 0o100644, 0, 0, Ino(1), 0, size_bytes=len(CONTENT)).ino
    assert past_content.share_range(db, txg, old, new, BlockIndex(0), 9) == (None, 1)
    return new


async def revive(session: Session, txg: Txg, old: Ino) -> Ino:
    """Open the database of a past txg, and create a file that shares a block with a past file."""
    points = points_of(session)
    async with points.kept_open(txg) as point:
        with attached(session.db, point.db.path):
            return share(session, txg, old)


@asynccontextmanager
async def revived(plain: Power) -> AsyncIterator[tuple[Session, Ino, Txg]]:
    """Yield a session with a file that revived a pack, and the txg in which the pack died."""
    async with plain.session("a", tasks=False) as session:
        old = write_file(session, CONTENT)
        past = await ship(session)
        remove_file(session, old)
        died = await ship(session)
        assert [row.died_txg for row in packs.iterate(session.db)] == [died]
        yield session, await revive(session, past, old), died


def state_of(session: Session) -> list[tuple[int, Txg | None]]:
    """Return the live bytes and the txg of death of each pack."""
    return [(row.live_bytes, row.died_txg) for row in packs.iterate(session.db)]


async def test_revived_block_gets_a_new_number_at_its_former_location(plain: Power) -> None:
    """A revived block gets a new number, so that the changelog contains its location."""
    async with revived(plain) as (session, ino, _died):
        located = block_map.locate(session.db, ino, BlockIndex(0))
        assert located is not None
        assert (located.block, located.pack, located.pack_offset) == (2, 1, 0)
        assert session.db.counters.next_block == 3
        assert state_of(session) == [(located.stored_bytes, None)]
        assert await read_file(session, ino) == CONTENT


@pytest.mark.parametrize("has_image", [False, True])
async def test_another_host_can_read_a_revived_block(plain: Power, has_image: bool) -> None:
    async with revived(plain) as (session, ino, _died):
        await ship(session)
        if has_image:
            await session.make_image()
        found = state_of(session)
        await session.close()
    async with plain.session("b", tasks=False) as session:
        assert state_of(session) == found
        assert await read_file(session, ino) == CONTENT


async def fill_run(session: Session) -> None:
    """Ship txgs until the next txg begins a run of a level 1 object."""
    while session.link.txg % LEVEL_FAN_OUT:
        write_file(session, b"%d" % session.link.txg)
        await ship(session)


async def test_level_object_records_that_a_revived_pack_died_again(plain: Power) -> None:
    """A restore from a level object records the txg in which a revived pack died again.

    The level object omits the block, which was created and deleted within its run. Without a note
    about the pack, a host would count the pack as dead since its first death. The host would then
    delete the pack too early: points in time between the revival and the second death need it.
    """
    async with plain.session("a", tasks=False) as session:
        old = write_file(session, CONTENT)
        past = await ship(session)
        remove_file(session, old)
        await ship(session)
        await fill_run(session)
        ino = await revive(session, past, old)
        await ship(session)
        remove_file(session, ino)
        died = await ship(session)
        await fill_run(session)
        assert state_of(session)[0] == (0, died)
        await session.leveler.make_due()
        await session.close()

    store = FaultyStore(plain.store)
    async with plain.session("b", tasks=False, store=store) as session:
        (live, known), *_ = state_of(session)
    assert any(one.method == "get" and one.key.startswith("level/1/") for one in store.calls)
    assert live == 0
    assert known is not None
    assert known >= died


async def test_follower_and_writer_agree_on_revived_packs(plain: Power) -> None:
    """A follower must apply changelogs in which a pack is revived and dies a second time."""
    async with revived(plain) as (session, ino, _died):
        for _ in range(2):
            await ship(session)
            async with plain.session(
                "b", tasks=False, options=OpenOptions(read_only=True)
            ) as reader:
                assert state_of(reader) == state_of(session)
            if inodes.find(session.db, ino) is not None:
                remove_file(session, ino)
        assert state_of(session)[0][0] == 0


async def test_pack_revived_after_a_snapshot_is_listed_in_the_next_changelog(plain: Power) -> None:
    """A pack that is revived before and after a snapshot is listed in two changelogs."""
    again: list[Path] = []

    def hook(step: str) -> None:
        if step == "txg cut" and again:
            with attached(session.db, again.pop()):
                share(session, past, old)

    async with plain.session("a", tasks=False, hook=hook) as session:
        old = write_file(session, CONTENT)
        past = await ship(session)
        remove_file(session, old)
        await ship(session)
        remove_file(session, await revive(session, past, old))
        points = points_of(session)
        async with points.kept_open(past) as point:
            again.append(point.db.path)
            await ship(session)
        assert pending.pack_news(session.db.connection) == [1]
        await ship(session)
        assert pending.pack_news(session.db.connection) == []


@pytest.mark.parametrize(
    "step",
    ["txg cut", "txg uploaded", "txg attempted", "changelog put", "txg confirmed"],
)
async def test_kill_while_a_revived_pack_is_shipped_keeps_the_pack_and_its_record(
    plain: Power, step: str
) -> None:
    """After a kill, the next mount ships the file that revived the pack."""
    kill = KillAt(step)
    async with plain.session("a", tasks=False, hook=kill) as session:
        old = write_file(session, CONTENT)
        past = await ship(session)
        remove_file(session, old)
        await ship(session)
        await fill_run(session)
        ino = await revive(session, past, old)
        kill.armed = True
        with pytest.raises(Killed):
            await ship(session)
    async with plain.session("a", tasks=False) as session:
        assert await read_file(session, ino) == CONTENT
        await ship(session)
        remove_file(session, ino)
        died = await ship(session)
        await fill_run(session)
        await session.leveler.make_due()
        await session.close()
    async with plain.session("b", tasks=False) as session:
        (live, known), *_ = state_of(session)
    assert live == 0
    assert known is not None
    assert known >= died


@pytest.mark.parametrize("is_kept", [False, True], ids=["retained", "kept"])
async def test_unshipped_copy_of_a_past_file_can_be_recovered_from_a_fenced_host(
    plain: Power, is_kept: bool
) -> None:
    """For the new writer a revived pack is dead, but the pack is retained."""
    async with plain.session("a", tasks=False) as session:
        old = write_file(session, CONTENT)
        past = await ship(session)
        if is_kept:
            await plain.retain(0)
            await PointKeeper(session).keep("a")
        remove_file(session, old)
        await ship(session)
        copied = await revive(session, past, old)
        session.durability.commit()
    async with plain.session("b", options=TAKEOVER, tasks=False) as session:
        await forget(session)
        assert (session.link.floor > past) == is_kept
        await unmount(session)
    async with plain.session("a", tasks=False):
        pass
    [path] = (plain.home / "a").glob("kept-*")
    keys = await plain.keys()
    with closing(quarantine_list.open_database(Kept(path, 1))) as db:
        assert quarantine_list.changed(db, None) == [copied]
        located = block_map.locate(db, copied, BlockIndex(0))
        assert located is not None
        reader = KeptContent(db, path / "blocks", plain.store, keys.keyring)
        [content] = await reader.read([located])
    assert content.data == CONTENT
