"""Rollback: an earlier state of the filesystem becomes the current state."""

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from s3fs_meta.errors import (
    DatabaseError,
    LostBlockError,
    SettingsError,
    StoreUnavailableError,
    TransientStoreError,
)
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.db.wal import Wal
from s3fs_meta.meta.tables import inodes, local_state, packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import Ino, PackState
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.hooks import ROLLBACK_STEPS
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.rows import SETTLED
from tests.rows import contents as rows_of
from tests.sync.conftest import (
    TAKEOVER,
    Power,
    flushed,
    location_of,
    read_file,
    remove_file,
    unmount,
    write_file,
)
from tests.sync.kills import KillAt, Killed
from tests.sync.rolling_back import roll_back

pytestmark = pytest.mark.thorough

ORDER = [
    "past restored",
    "txg cut",
    "image copied",
    "image pieces put",
    "image manifest put",
    "txg attempted",
    "changelog put",
    "txg confirmed",
    "lease head moved",
    "image confirmed",
    "past published",
    "present dropped",
    "past in place",
]


async def contents(power: Power, host: str, *inos: Ino) -> list[bytes | None]:
    """Return the content of files on a host; the content of a missing file is None."""
    async with power.session(host, options=TAKEOVER, tasks=False) as session:
        found = [
            None if inodes.find(session.db, ino) is None else await read_file(session, ino)
            for ino in inos
        ]
        await session.close()
    return found


async def test_rollback_is_visible_on_this_host_and_on_another_host(power: Power) -> None:
    """A second rollback restores the newer state; no inode, block or txg number is used twice."""
    async with power.session("a", tasks=False) as session:
        old = write_file(session, b"old")
        past = await flushed(session)
        remove_file(session, old)
        new = write_file(session, b"new")
        next_ino, next_block = session.db.counters.next_ino, session.db.counters.next_block
        await session.close()

    done = await roll_back(power, past)

    assert done.before.txg > past.txg  # The rollback ships local changes first.
    assert done.now.txg == done.before.txg + 1
    assert await contents(power, "a", old, new) == [b"old", None]
    assert await contents(power, "b", old, new) == [b"old", None]
    async with power.session("a", tasks=False) as session:
        third = write_file(session, b"third")
        assert third >= next_ino
        assert session.db.counters.next_block > next_block
        await session.close()
    await roll_back(power, done.before)
    assert await contents(power, "a", old, new, third) == [None, b"new", None]
    assert await contents(power, "c", old, new, third) == [None, b"new", None]


async def test_rollback_revives_old_packs_and_marks_newer_packs_as_dead(power: Power) -> None:
    """After a rollback, packs that only later txgs use are dead, but they are still stored."""
    async with power.session("a", tasks=False) as session:
        old = write_file(session, b"old")
        past = await flushed(session)
        remove_file(session, old)
        await flushed(session)
        write_file(session, b"new")
        await session.close()

    done = await roll_back(power, past)

    async with power.session("a", tasks=False) as session:
        first, second = packs.iterate(session.db)
        assert (first.live_bytes > 0, first.died_txg) == (True, None)
        assert (second.live_bytes, second.died_txg) == (0, done.now.txg)
        assert second.state is PackState.STORED
        counted = session.db.counters.stored_bytes
        assert counted == first.object_bytes + second.object_bytes


async def test_rollback_that_needs_a_condemned_pack_is_refused(power: Power) -> None:
    """A rollback fails if a block of the condemned pack is in no other pack."""
    async with power.session("a", tasks=False) as session:
        gone, copied = write_file(session, b"gone"), write_file(session, b"elsewhere")
        past = await flushed(session)
        remove_file(session, gone)
        remove_file(session, copied)
        [row] = packs.iterate(session.db)
        session.db.begin()
        packs.condemn(session.db, row.pack)
        only_copied = await flushed(session)
        again = write_file(session, b"elsewhere")
        await flushed(session)
        await session.close()
    objects = dict(power.store.objects)

    with pytest.raises(SettingsError, match=row.object_key):
        await roll_back(power, past)

    grown = {key for key in power.store.objects if key not in objects}
    # The fence record is the only new object.
    assert all(key.startswith("changelog/") for key in grown)
    assert await contents(power, "a", gone, copied, again) == [None, None, b"elsewhere"]
    assert only_copied.txg > past.txg


async def test_rollback_finds_blocks_that_were_moved_to_another_pack(power: Power) -> None:
    """The rollback uses the blocks that compaction moved before their pack was condemned."""
    async with power.session("a", tasks=False) as session:
        kept = write_file(session, b"kept" * 100)
        filler = write_file(session, bytes(range(256)) * 40)
        past = await flushed(session)
        remove_file(session, filler)
        remove_file(session, kept)
        [row] = packs.iterate(session.db)
        session.db.begin()
        packs.condemn(session.db, row.pack)
        write_file(session, b"kept" * 100)
        write_file(session, bytes(range(256)) * 40)
        await session.close()

    await roll_back(power, past)

    assert await contents(power, "b", kept, filler) == [b"kept" * 100, bytes(range(256)) * 40]


async def test_rollback_quarantines_the_file_of_a_torn_block(power: Power) -> None:
    """The block file is the only copy of the intact part of a torn, dirty block."""
    async with power.session("a", tasks=False) as session:
        old = write_file(session, b"old")
        past = await flushed(session)
        torn = write_file(session, b"half of it is left")
        session.durability.commit()
        located = location_of(session, torn)
        session.files.cut_after(located.block, 4)
        with pytest.raises(LostBlockError):
            await session.flush()
        await session.close()

    done = await roll_back(power, past)

    [kept] = (power.home / "a").glob("kept-*")
    assert str(kept) in done.notices[0]
    assert b"half" in [path.read_bytes() for path in kept.glob("blocks/**/*") if path.is_file()]
    assert await contents(power, "b", old) == [b"old"]


async def test_rollback_marks_the_quarantined_state_as_cleanly_closed(power: Power) -> None:
    """Without the mark, recover-state would treat the next reboot as a power cut."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"old")
        past = await flushed(session)
        torn = write_file(session, b"half of it is left")
        session.durability.commit()
        session.files.cut_after(location_of(session, torn).block, 4)
        await session.close()

    await roll_back(power, past)

    [kept] = (power.home / "a").glob("kept-*")
    with closing(Database.open(kept / "meta.db", Pragmas(), read_only=True)) as db:
        assert local_state.get(db, "clean") == "1"


async def test_rollback_quarantines_cached_blocks_of_a_damaged_pack(power: Power) -> None:
    """Cached blocks of a damaged pack are the last copies, so the rollback keeps them."""
    async with power.session("a", tasks=False) as session:
        past = session.link
        write_file(session, b"only cached")
        await session.flush_at_end()
        [pack] = packs.iterate(session.db)
        session.damage.mark(Mark(pack.pack, None), "is missing")
        session.durability.commit()
        del power.store.objects[pack.object_key]
        await unmount(session)

    done = await roll_back(power, past)

    [kept] = (power.home / "a").glob("kept-*")
    assert str(kept) in done.notices[0]
    assert b"only cached" in [
        path.read_bytes() for path in kept.glob("blocks/**/*") if path.is_file()
    ]


async def test_lost_block_does_not_prevent_a_rollback(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        lost, good = write_file(session, b"lost"), write_file(session, b"good")
        session.durability.commit()
        located = location_of(session, lost)
        session.files.remove(located.block)
        for _ in range(2):
            with pytest.raises(LostBlockError):
                await session.flush()
        past = session.link
        remove_file(session, good)
        await session.close()

    done = await roll_back(power, past)

    assert "lost" in done.notices[0]
    assert await contents(power, "b", good) == [b"good"]


@pytest.mark.parametrize("step", ORDER)
async def test_kill_during_a_rollback_leaves_the_current_or_the_earlier_state(
    power: Power, step: str
) -> None:
    async with power.session("a", tasks=False) as session:
        old = write_file(session, b"old")
        past = await flushed(session)
        remove_file(session, old)
        new = write_file(session, b"new")
        await flushed(session)
        await session.close()
    kill = KillAt(step)

    def hook(reached: str) -> None:
        if reached == "past restored":
            kill.armed = True
        kill(reached)

    with pytest.raises(Killed):
        await roll_back(power, past, hook=hook)
    before, after = [None, b"new"], [b"old", None]
    there = "changelog put" in ORDER[: ORDER.index(step) + 1]

    assert await contents(power, "b", old, new) == (after if there else before)
    async with power.session("a", options=TAKEOVER, tasks=False) as session:
        shown = rows_of(session.db.connection, SETTLED)
        write_file(session, b"goes on")
        await session.flush()
        assert not (power.home / "a" / "rollback").exists()
        assert not list((power.home / "a").glob("kept-*"))
        shipped = rows_of(session.db.connection, SETTLED)
    assert await contents(power, "a", old, new) == (after if there else before)
    assert shown != shipped
    async with power.session("c", options=TAKEOVER, tasks=False) as session:
        assert rows_of(session.db.connection, SETTLED) == shipped


async def _two_states(power: Power) -> tuple[Ino, Link]:
    """Write and remove a file on host a; return the file and the txg that contains it."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"old")
        past = await flushed(session)
        remove_file(session, ino)
        await flushed(session)
        await session.close()
    return ino, past


async def _shows(power: Power, ino: Ino) -> bool:
    """Mount the filesystem on host a without a takeover; return whether the file exists."""
    async with power.session("a", tasks=False) as session:
        return inodes.find(session.db, ino) is not None


@pytest.mark.parametrize("step", ORDER)
async def test_host_of_an_interrupted_rollback_needs_no_takeover(power: Power, step: str) -> None:
    """After a kill, the chain may have a txg that only the restored database of the host records."""
    ino, past = await _two_states(power)
    kill, store = KillAt(step), FaultyStore(power.store)

    def hook(reached: str) -> None:
        kill.armed = kill.armed or reached == "past restored"
        if kill.armed and reached == step:
            store.down = StoreUnavailableError("any", 1, 0.0, "a killed process sends no request")
        kill(reached)

    with pytest.raises((Killed, StoreUnavailableError)):
        await roll_back(power, past, hook=hook, store=store)

    assert await _shows(power, ino) == ("changelog put" in ORDER[: ORDER.index(step) + 1])


async def test_host_whose_rollback_could_not_release_the_lease_needs_no_takeover(
    power: Power,
) -> None:
    ino, past = await _two_states(power)
    store = FaultyStore(power.store)

    def hook(step: str) -> None:
        if step == "past published":
            store.fail("replace", times=100)

    with pytest.raises(TransientStoreError):
        await roll_back(power, past, hook=hook, store=store)

    assert await _shows(power, ino)


async def test_rollback_whose_last_checkpoint_failed_does_not_move_an_incomplete_database(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed checkpoint, the write-ahead log has the only copy of some pages."""
    ino, past = await _two_states(power)
    checkpoint = Wal.try_checkpoint

    def fail_beside(wal: Wal, connection: apsw.Connection) -> bool:
        return "rollback" not in connection.filename and checkpoint(wal, connection)

    monkeypatch.setattr(Wal, "try_checkpoint", fail_beside)

    with pytest.raises(DatabaseError, match="free space"):
        await roll_back(power, past)

    assert await _shows(power, ino)


def test_every_step_of_a_rollback_is_tested_and_documented() -> None:
    """docs/design/durability.md lists the steps of a rollback in the order of the code."""
    text = Path("docs/design/durability.md").read_text("utf-8")
    places = [text.index(f"`{step}`") for step in ROLLBACK_STEPS]

    assert set(ROLLBACK_STEPS) <= set(ORDER)
    assert places == sorted(places)
