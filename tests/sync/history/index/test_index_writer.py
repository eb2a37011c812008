"""The index writer: it indexes new txgs immediately, and earlier txgs step by step."""

import pytest

from s3fs_meta.codec import history_index
from s3fs_meta.codec.changelog import PREFIX as CHANGELOGS
from s3fs_meta.codec.history_index import RUNS, HistoryIndex
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.limits import HISTORY_FAN_OUT, HISTORY_TXGS_WAITING_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.sync.history.index import index_runs
from s3fs_meta.sync.session import Session
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, write_file
from tests.sync.history.files import Files

pytestmark = pytest.mark.thorough

RUN = HISTORY_FAN_OUT


def indexed(power: Power, keyring: Keyring) -> dict[ObjectKey, HistoryIndex]:
    """Return the index objects in the bucket."""
    return {
        key: history_index.decode(key, data, keyring)
        for key, data in power.store.objects.items()
        if key.startswith(history_index.PREFIX)
    }


async def ship_files(session: Session, count: int) -> None:
    """Ship txgs that create one file each."""
    for number in range(count):
        write_file(session, b"%d" % number)
        await session.shipper.ship(anyway=True)


async def test_index_of_existing_txgs_equals_the_index_of_new_txgs(power: Power) -> None:
    """If the bucket has no index, each check creates some of the missing index objects."""
    async with power.session("a", tasks=False) as session:
        keyring = session.volume.keyring
        await session.indexer.make_due()
        await ship_files(session, 3)
        await append_empty_changelogs(session, RUN * RUN + 5)
        await session.indexer.make_due()
        new = indexed(power, keyring)
    for key in new:
        del power.store.objects[key]
    async with power.session("a", tasks=False) as session:
        await session.indexer.make_due()
        assert 0 < len(indexed(power, keyring)) < len(new)
        while session.indexer.older:
            await session.indexer.make_due()

    assert indexed(power, keyring) == new
    assert len(new) == RUN + 1


async def test_next_mount_creates_only_missing_index_objects(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        await session.indexer.make_due()
        await ship_files(session, 2 * RUN)
        await session.indexer.make_due()
    del power.store.objects[RUNS.key_of(1, Txg(RUN))]
    before = dict(power.store.objects)
    async with power.session("a", tasks=False) as session:
        await session.indexer.make_due()

    made = {key for key, data in power.store.objects.items() if before.get(key) != data}
    assert {key for key in made if key.startswith("history/")} == {RUNS.key_of(1, Txg(RUN))}


async def test_index_writer_uses_changelogs_that_the_level_writer_has_read(power: Power) -> None:
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        await session.indexer.make_due()
        for _ in range(RUN + 5):
            await ship_files(session, 1)
            await session.leveler.make_due()
        store.calls.clear()
        await session.indexer.make_due()

    assert RUNS.key_of(1, Txg(RUN)) in power.store.objects
    assert [call for call in store.calls if call.key.startswith(CHANGELOGS)] == []


async def test_index_writer_keeps_a_limited_number_of_changes_in_memory(power: Power) -> None:
    """If many txgs are shipped between two checks, some changelogs are read a second time."""
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        await session.indexer.make_due()
        for _ in range(HISTORY_TXGS_WAITING_MAX + RUN):
            await ship_files(session, 1)
            await session.leveler.make_due()
        store.calls.clear()
        await session.indexer.make_due()
        runs = session.link.txg // RUN

    assert len(indexed(power, session.volume.keyring)) == runs
    assert [call for call in store.calls if call.key.startswith(CHANGELOGS)] != []


async def test_index_of_new_txgs_is_built_after_an_outage_of_the_store(power: Power) -> None:
    store = FaultyStore(power.store)
    async with power.session("a", tasks=False, store=store) as session:
        await session.indexer.make_due()
        await ship_files(session, RUN)
        store.fail("create", StoreUnavailableError("history", 1, 0.0, "away"))
        with pytest.raises(StoreUnavailableError):
            await session.indexer.make_due()
        assert indexed(power, session.volume.keyring) == {}
        await session.indexer.make_due()

    assert list(indexed(power, session.volume.keyring)) == [RUNS.key_of(1, Txg(RUN))]


async def test_unreadable_changelog_is_marked_as_unknown_in_the_index(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        await session.indexer.make_due()
        await ship_files(session, RUN)
        del power.store.objects[ObjectKey(f"{CHANGELOGS}{5:012d}")]
        await session.indexer.make_due()
        (made,) = indexed(power, session.volume.keyring).values()

    assert made.unknown == 1 << 4


@pytest.mark.parametrize(
    ("limit", "value"),
    [("HISTORY_INODES_MAX", 10), ("HISTORY_NAMES_MAX", 1), ("HISTORY_NAME_BYTES_MAX", 8)],
)
async def test_no_index_object_is_created_for_txgs_with_too_many_changes(
    power: Power, limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with too many changes is skipped, and the index writer continues with the next run."""
    async with power.session("a", tasks=False) as session:
        await session.indexer.make_due()
        files = Files(session)
        for number in range(RUN // 2):
            await files.make(b"file-%d" % number, 10)
            await files.remove(b"file-%d" % number)
        monkeypatch.setattr(index_runs, limit, value)
        await session.indexer.make_due()
        assert indexed(power, session.volume.keyring) == {}
        monkeypatch.undo()
        await ship_files(session, RUN)
        await session.indexer.make_due()

    assert list(indexed(power, session.volume.keyring)) == [RUNS.key_of(1, Txg(2 * RUN))]
