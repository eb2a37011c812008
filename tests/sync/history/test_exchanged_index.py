"""Index objects that were replaced by index objects of another history of the filesystem."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import history_index
from s3fs_meta.codec.changelog import Changelog, Kind
from s3fs_meta.codec.history_index import RUNS, HistoryIndex
from s3fs_meta.codec.image import content_hash
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.limits import HISTORY_FAN_OUT
from s3fs_meta.model import Ino, ObjectKey, Txg
from s3fs_meta.objects.billing import Meter, MeteredStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.index.index_search import HistorySearch
from s3fs_meta.sync.session import Session
from tests.damage import flipped
from tests.sync.chain.empty_changelogs import append_empty_changelogs
from tests.sync.conftest import Power, write_file
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
CHANGED = RUNS.key_of(1, Txg(4 * RUN))
ABOVE = RUNS.key_of(2, Txg(RUN * RUN))


@asynccontextmanager
async def two_histories(power: Power) -> AsyncIterator[tuple[Session, Ino, bytes]]:
    """Make two histories in which only the later one creates a file in the fourth run.

    Yields:
        A session of the later history, without an index; the file; the index object of the fourth
        run in the other history.
    """
    objects = power.store.objects
    async with power.session("a", tasks=False) as session:
        write_file(session, b"x")
        await session.shipper.ship(anyway=True)
        await session.close()
    older = dict(objects)
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, 4 * RUN - session.link.txg)
        await index_all(session)
    other = objects[CHANGED]
    objects.clear()
    objects.update(older)
    async with power.session("b", tasks=False) as session:
        await append_empty_changelogs(session, 3 * RUN + 5 - session.link.txg)
        ino = write_file(session, b"later")
        session.db.counters.begin_txg(session.link.next_txg)
        await session.shipper.ship(anyway=True)
        await append_empty_changelogs(session, RUN * RUN + 3 - session.link.txg)
        yield session, ino, other


async def test_restored_older_index_object_hides_no_change(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """A valid index object of level 2 does not prove that the level 1 objects are valid."""
    async with two_histories(power) as (session, ino, other):
        await index_all(session)
        wanted = [one for one in changing(await all_changes(session), ino) if one[0] <= RUN * RUN]
        assert len(wanted) == 1
        power.store.objects[CHANGED] = other
        found = await found_by(search_of(power, session), of_inode(ino))
        assert set(wanted) <= {(txg, True) for txg, _ in found}
        assert f"ignoring the index object {CHANGED}" in caplog.text
        assert "fsck -p --deep memory:" in caplog.text

        taken: list[ObjectKey] = []

        def take(index: HistoryIndex, _mask: int) -> None:
            taken.append(index.key)

        within = (Txg(2 * RUN + 1), Txg(4 * RUN))
        missing = await search_of(power, session).collect(*within, take)
        assert taken == [RUNS.key_of(1, Txg(3 * RUN))]
        assert sorted(missing) == list(range(3 * RUN + 1, 4 * RUN + 1))


async def test_adjacent_index_objects_are_verified_with_few_changelogs(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, RUN * RUN + 3)
        await index_all(session)
        opened, meter = session.volume, Meter()
        store = MeteredStore(power.store, meter)
        search = HistorySearch(store, opened.keyring, opened.uuid, session.link)

        def last_parts(index: HistoryIndex) -> int:
            return 0xFF << 24 if index.level > 1 else 1

        await search.walk(last_parts, Txg(1), Txg(RUN * RUN)).take(8)
    sent = sum(billed.requests for counts in meter.take().values() for billed in counts.values())
    # The requests are one listing, the level 2 object, its proof and eight level 1 objects.
    assert sent == 1 + 2 + 8


async def test_index_writer_merges_no_index_object_of_another_history(power: Power) -> None:
    """The index objects of the neighbouring runs, which could reveal the exchange, are missing."""
    objects = power.store.objects
    async with two_histories(power) as (session, _ino, other):
        for run in (3, 5):
            damaged = changelog_codec.key_of(Txg(run * RUN))
            objects[damaged] = flipped(objects[damaged], -1)
        objects[CHANGED] = other
        await index_all(session)
        index = history_index.decode(ABOVE, objects[ABOVE], session.volume.keyring)
        assert index.unknown == 0b11100


async def test_object_of_another_history_is_decoded_in_a_thread_and_replaced(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding a large index object on the event loop would stall all requests."""
    loop, decoded_by = threading.get_ident(), list[int]()
    decode = history_index.decode

    def watched(key: ObjectKey, data: bytes, keyring: Keyring) -> HistoryIndex:
        if key == CHANGED and data == other:
            decoded_by.append(threading.get_ident())
        return decode(key, data, keyring)

    async with two_histories(power) as (session, _ino, other):
        await session.indexer.make_due()
        assert CHANGED not in power.store.objects
        power.store.objects[CHANGED] = other  # A late replication of the bucket may do the same.
        monkeypatch.setattr(history_index, "decode", watched)
        await index_all(session)
        keyring = session.volume.keyring

    assert len(decoded_by) == 1
    assert loop not in decoded_by
    found = decode(CHANGED, power.store.objects[CHANGED], keyring)
    assert found.hash != decode(CHANGED, other, keyring).hash


async def test_run_of_txgs_that_ends_with_abandoned_txgs_gets_no_index_object(power: Power) -> None:
    """No index object is made for a run with abandoned txgs, because searches would refuse it."""
    async with power.session("a", tasks=False) as session:
        await append_empty_changelogs(session, 2 * RUN - 4 - session.link.txg)
        named = session.link
        await append_empty_changelogs(session, 4)
        await append_fence(session, named)
        await index_all(session)
        found = {key for key in power.store.objects if key.startswith("history/")}
    assert found == {RUNS.key_of(1, Txg(RUN))}


async def append_fence(session: Session, named: Link) -> None:
    """Append a fence record that abandons the txgs after a chain position."""
    opened, txg = session.volume, session.link.next_txg
    made = Changelog(
        kind=Kind.FENCE,
        txg=txg,
        epoch=opened.keeper.epoch,
        nonce="00" * 16,
        uuid=opened.superblock.uuid,
        schema_version=1,
        created_ns=session.link.created_ns + 1,
        previous=named.hash,
    )
    data = changelog_codec.encode(made, opened.keyring)
    await opened.store.create(changelog_codec.key_of(txg), data)
    link = Link(txg, content_hash(data), made.created_ns)
    opened.position.advance(link)
    session.db.begin_local()
    chain.record_own(session.db, link)
    session.db.commit()
