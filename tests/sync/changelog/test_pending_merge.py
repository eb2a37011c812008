"""Merging of pending change records, which limits the number of records."""

import pytest
import trio

from s3fs_meta.errors import TransientStoreError
from s3fs_meta.meta.db.pragmas import JOURNAL_MODES, Pragmas
from s3fs_meta.meta.tables import inodes
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.rows import SETTLED, contents
from tests.sync.conftest import TAKEOVER, Power, read_file, write_file


@pytest.mark.parametrize("journal_mode", JOURNAL_MODES)
async def test_pending_change_records_of_one_file_are_merged_into_one_record(
    power: Power, journal_mode: str
) -> None:
    """The merge limits the number of records during an outage, in which nothing is shipped."""
    options = OpenOptions(pragmas=Pragmas(journal_mode=journal_mode))
    async with power.session("a", options=options, tasks=False) as session:
        ino = write_file(session, b"x")
        for number in range(50):
            session.db.begin()
            inodes.touch(session.db, ino, mtime_ns=number)
            session.db.commit()
        before = session.volume.recorder.bytes

        assert await session.condenser.condense(records_min=5)
        assert not await session.condenser.condense(records_min=5)

        assert session.volume.recorder.bytes < before / 10
        assert session.db.one("SELECT count(*) FROM pending") == (1,)
        await session.flush()
    async with power.session("b", options=TAKEOVER) as session:
        assert inodes.get(session.db, ino).mtime_ns == 49
        assert await read_file(session, ino) == b"x"


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
async def test_pending_change_records_of_an_unconfirmed_txg_are_not_merged(
    power: Power, journal_mode: str
) -> None:
    """The records of a txg must not change while its changelog is being uploaded."""
    options = OpenOptions(pragmas=Pragmas(journal_mode=journal_mode))
    faulty = FaultyStore(power.store)

    async with power.session("a", options=options, tasks=False, store=faulty) as session:

        async def change(first: int) -> None:
            for number in range(first, first + 20):
                write_file(session, b"%d" % number)
                session.db.commit()

        await change(0)
        gate = faulty.hold("create")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.flush)
            await gate.wait_started()  # The upload of the first pack is running.
            await change(20)
            assert await session.condenser.condense(records_min=5)
            gate.open()
        await session.flush()
        expected = contents(session.db.connection, SETTLED)
    async with power.session("b", options=TAKEOVER) as session:
        assert contents(session.db.connection, SETTLED) == expected


async def test_pending_change_records_of_a_failed_txg_are_merged(power: Power) -> None:
    """While an outage lasts, records of a failed txg are merged with newer records."""
    faulty = FaultyStore(power.store)
    bounds = UploadBounds(run_bytes=4000)
    async with power.session("a", tasks=False, store=faulty, bounds=bounds) as session:
        ino = write_file(session, b"x")
        await session.flush()
        for _ in range(3):
            for _ in range(100):
                session.db.begin()
                inodes.touch(session.db, ino, mtime_ns=session.db.changes_begun)
                session.db.commit()
            faulty.fail("create")
            with pytest.raises(TransientStoreError):
                await session.flush()

        assert await session.condenser.condense(records_min=5)
        session.db.commit()

        shipped = session.volume.recorder.shipped_seq
        assert session.db.one("SELECT count(*) FROM pending WHERE seq > ?", (shipped,)) == (1,)
        await session.flush()
        expected = contents(session.db.connection, SETTLED)
    async with power.session("b", options=TAKEOVER) as session:
        assert contents(session.db.connection, SETTLED) == expected
