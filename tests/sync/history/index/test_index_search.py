"""Searches in the history index for txgs that changed an inode or removed a name."""

import random
from dataclasses import replace

import pytest

from s3fs_meta.codec import history_index
from s3fs_meta.codec.history_index import RUNS, HistoryIndex
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino, Txg
from s3fs_meta.objects.billing import Meter, MeteredStore
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.session import Session
from tests.damage import flipped
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, remove_file, write_file
from tests.sync.history.index_matches import (
    all_changes,
    changing,
    found_by,
    index_all,
    of_inode,
    search_of,
)

pytestmark = pytest.mark.thorough

RUN = HISTORY_FAN_OUT


async def work(session: Session, txgs: int, seed: int = 1) -> list[Ino]:
    """Ship txgs that create, change and remove files; return the files."""
    rnd = random.Random(seed)
    made: list[Ino] = []
    living: list[Ino] = []
    for _ in range(txgs):
        made.append(write_file(session, rnd.randbytes(100)))
        living.append(made[-1])
        inodes.touch(session.db, rnd.choice(living), mtime_ns=10**18 + rnd.randrange(10**9))
        if rnd.random() < 0.3:
            remove_file(session, living.pop(rnd.randrange(len(living))))
        await session.shipper.ship(anyway=True)
    return made


@pytest.mark.thorough
async def test_index_search_finds_all_txgs_that_changed_an_inode(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        files = await work(session, 2 * RUN + 5)
        await index_all(session)
        stored = {key for key in power.store.objects if key.startswith("history/")}
        search = search_of(power, session)
        changes = await all_changes(session)
        for ino in files:
            wanted = changing(changes, ino)
            assert await found_certainly(search, ino, session, wanted) == wanted

    assert stored == {RUNS.key_of(1, Txg(RUN)), RUNS.key_of(1, Txg(2 * RUN))}


async def found_certainly(
    search: HistorySearch, ino: Ino, session: Session, changed: list[tuple[Txg, bool]]
) -> list[tuple[Txg, bool]]:
    """Return the txgs that certainly changed an inode, including txgs after the last run."""
    wanted = {txg for txg, _ in changed}
    found = await found_by(search, of_inode(ino))
    indexed = session.link.txg // RUN * RUN
    assert {txg for txg, is_sure in found if not is_sure} == set(
        range(indexed + 1, session.link.txg + 1)
    )
    return [(txg, True) for txg, is_sure in found if is_sure or txg in wanted]


async def test_index_search_of_thousands_of_txgs_needs_few_requests(power: Power) -> None:
    """The changed txgs are in the first, a middle and the last run of two levels."""
    meter = Meter()
    store = MeteredStore(power.store, meter)
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"x")
        await session.shipper.ship(anyway=True)
        for count in (RUN * RUN // 2, RUN * RUN // 2 - 1, 10):
            await append_empty_changelogs(session, count)
            session.db.begin()
            inodes.touch(session.db, ino, mtime_ns=10**18 + count)
            session.db.counters.begin_txg(session.link.next_txg)
            await session.shipper.ship(anyway=True)
        await index_all(session)
        assert RUNS.key_of(2, Txg(RUN * RUN)) in power.store.objects
        wanted = changing(await all_changes(session), ino)
        opened = session.volume
        search = HistorySearch(store, opened.keyring, opened.uuid, session.link)
        meter.take()
        found = await found_by(search, of_inode(ino))

    assert [one for one in found if one[1]] == [one for one in wanted if one[0] <= RUN * RUN]
    assert len([txg for txg, _ in wanted if txg <= RUN * RUN]) > 1
    sent = sum(billed.requests for counts in meter.take().values() for billed in counts.values())
    # The search reads one listing, one level 2 object, and a few level 1 objects and changelogs.
    assert sent <= 8


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["flipped", "missing", "exchanged", "another chain"])
async def test_search_without_a_valid_index_object_finds_all_changes(
    power: Power, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with power.session("a", tasks=False) as session:
        files = await work(session, 3 * RUN)
        await index_all(session)
        objects = power.store.objects
        key, other = RUNS.key_of(1, Txg(RUN)), RUNS.key_of(1, Txg(2 * RUN))
        if damage == "flipped":
            objects[key] = flipped(objects[key], 60)
        elif damage == "missing":
            del objects[key]
        elif damage == "exchanged":
            objects[key], objects[other] = objects[other], objects[key]
        search = search_of(power, session)
        if damage == "another chain":
            search = HistorySearch(
                power.store,
                session.volume.keyring,
                session.volume.uuid,
                session.link._replace(txg=Txg(2 * RUN), hash="00" * 32),
            )
        changes = await all_changes(session)
        for ino in files[:RUN]:
            found = {txg for txg, _ in await found_by(search, of_inode(ino))}
            wanted = {txg for txg, _ in changing(changes, ino) if txg <= 2 * RUN}
            assert wanted <= found

    assert bool(caplog.messages) == (damage != "missing")


@pytest.mark.parametrize("data", [b"", b"a file of the user"])
async def test_search_advises_deleting_an_unusable_index_object_that_fsck_keeps(
    power: Power, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """fsck keeps a foreign object at the key of an index object; only the user may delete it."""
    key = RUNS.key_of(1, Txg(RUN))
    async with power.session("a", tasks=False) as session:
        files = await work(session, 2 * RUN)
        await index_all(session)
        stored = power.store.objects[key]
        power.store.objects[key] = data
        await found_by(search_of(power, session), of_inode(files[0]))
        assert "fsck keeps the object" in caplog.text
        assert "fsck -p" not in caplog.text

    del power.store.objects[key]
    async with power.session("a", tasks=False) as session:
        await index_all(session)
        restored = power.store.objects[key]
        keyring = session.volume.keyring
        assert history_index.decode(key, restored, keyring) == history_index.decode(
            key, stored, keyring
        )


async def test_index_search_reports_a_txg_with_unknown_changes_as_uncertain(power: Power) -> None:
    """A txg that was published as an image is uncertain, because it may change any inode."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"x")
        await session.shipper.ship(anyway=True)
        image = await session.publish_as_txg()
        await work(session, RUN)
        await index_all(session)
        found = await found_by(search_of(power, session), of_inode(ino))

    assert [one for one in found if one[0] <= RUN] == [(image.txg, False), (image.txg - 1, True)]


async def test_index_search_finds_removed_and_replaced_names(power: Power) -> None:
    """The index finds a removed name by its bytes, and a replaced name by its cookie."""
    async with power.session("a", tasks=False) as session:
        old, new = (write_file(session, text) for text in (b"old", b"new"))
        dentries.add(session.db, ROOT_INO, b"report", old)
        dentries.add(session.db, ROOT_INO, b"draft", new)
        row = session.db.one("SELECT cookie FROM dentries WHERE name = ?", (b"report",))
        await session.shipper.ship(anyway=True)
        session.db.begin()
        dentries.replace(session.db, ROOT_INO, b"report", new)
        dentries.remove(session.db, ROOT_INO, b"draft")
        await session.shipper.ship(anyway=True)
        removal = session.link.txg
        await work(session, RUN)
        await index_all(session)

        def draft(index: HistoryIndex) -> int:
            return sum(one.mask for one in index.names if one.name == b"draft" and one.ino == new)

        def report(index: HistoryIndex) -> int:
            assert row is not None
            return sum(one.mask for one in index.names if one.cookie == row[0] and one.ino == old)

        for match in (draft, report):
            found = await found_by(search_of(power, session), match)
            assert [one for one in found if one[0] <= RUN] == [(removal, True)]


async def test_index_search_returns_only_txgs_in_the_given_range(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        await work(session, 2 * RUN + 3)
        await index_all(session)
        search = search_of(power, session)

        def everything(index: HistoryIndex) -> int:
            return 0xFFFFFFFF if index.last else 0

        for first in (1, 5, RUN, RUN + 1, 2 * RUN + 2):
            found = [txg for txg, _ in await found_by(search, everything, first)]
            assert found == list(range(session.link.txg, first - 1, -1))


async def lose_last_changelogs(power: Power) -> bytes:
    """Restore an older bucket that has a later index object; return this object."""
    objects, key = power.store.objects, RUNS.key_of(1, Txg(2 * RUN))
    async with power.session("a", tasks=False) as session:
        await work(session, 2 * RUN - 10 - session.link.txg)
        await session.close()
    older = dict(objects)
    async with power.session("a", tasks=False) as session:
        await work(session, 20)
        await index_all(session)
        await session.close()
    lost = objects[key]
    objects.clear()
    objects.update({**older, key: lost})
    return lost


@pytest.mark.parametrize("indexes", [False, True])
async def test_index_object_of_lost_changelogs_does_not_hide_later_changes(
    power: Power, indexes: bool
) -> None:
    """After txgs are lost, new txgs get their numbers, and the index object is replaced."""
    lost = await lose_last_changelogs(power)
    async with power.session("b", tasks=False) as session:
        await session.indexer.make_due()  # In a mount, a background task makes the index.
        write_file(session, b"one more, so that the inodes differ")
        files = await work(session, 20, seed=2)
        if indexes:
            await index_all(session)
            assert power.store.objects[RUNS.key_of(1, Txg(2 * RUN))] != lost
        assert session.link.txg > 2 * RUN
        changes = await all_changes(session)
        for ino in files:
            wanted = {txg for txg, _ in changing(changes, ino)}
            found = await found_by(search_of(power, session), of_inode(ino))
            assert wanted <= {txg for txg, _ in found}


async def test_search_of_a_txg_range_ignores_an_index_object_with_a_hash_of_no_changelog(
    power: Power,
) -> None:
    """A valid earlier index object does not prove that a later index object is valid."""
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, 3 * RUN)
        await index_all(session)
        key = RUNS.key_of(1, Txg(2 * RUN))
        keyring = session.volume.keyring
        index = history_index.decode(key, power.store.objects[key], keyring)
        power.store.objects[key] = history_index.encode(replace(index, hash="00" * 32), keyring)
        taken: list[Txg] = []

        def take(index: HistoryIndex, _mask: int) -> None:
            taken.append(index.last)

        missing = await search_of(power, session).collect(Txg(1), Txg(2 * RUN), take)
    assert taken == [RUN]
    assert sorted(missing) == list(range(RUN + 1, 2 * RUN + 1))
