"""Refusal of wrong next numbers, before a writer takes a number that is in use."""

import apsw
import pytest

from s3fs_meta.errors import MetadataError
from s3fs_meta.limits import PAST_INO_MIN
from s3fs_meta.meta import next_numbers
from s3fs_meta.meta.db.counters import TABLE_OF
from s3fs_meta.model import Ino
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power, read_file, ship, unmount, write_file
from tests.sync.follower.following import following

CONTENT = b"content"
COUNTERS = ["next_ino", "next_block", "next_pack"]
IMPOSSIBLE = PAST_INO_MIN + 1


async def written(power: Power) -> Ino:
    """Write one file on host "a" and unmount; return the inode number of the file."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        await unmount(session)
    return ino


def damage(power: Power, counter: str, value: int) -> None:
    """Change a counter in the local database of host "a"."""
    connection = apsw.Connection(str(power.home / "a" / "meta.db"))
    connection.execute(f"UPDATE {TABLE_OF[counter]} SET {counter} = ?", (value,))
    connection.close()


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("value", [1, -5, IMPOSSIBLE, (1 << 63) - 1])
async def test_mount_for_writing_is_refused_if_a_next_number_is_wrong(
    power: Power, counter: str, value: int
) -> None:
    """A new block could replace a block in use; a read-only mount takes no numbers, so it works."""
    ino = await written(power)
    damage(power, counter, value)
    before = dict(power.store.objects)

    with pytest.raises(MetadataError, match=f"{counter} is {value}, .*fsck -y"):
        async with power.session("a"):
            pass
    assert power.store.objects == before
    async with power.session("a", options=OpenOptions(read_only=True), tasks=False) as session:
        assert await read_file(session, ino) == CONTENT
    async with power.session("a", options=OpenOptions(repairing=True), tasks=False) as session:
        assert session.status.writable


async def test_restored_state_with_a_next_number_in_use_is_refused(power: Power) -> None:
    """An image can contain a damaged number; a host without local state restores the image."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        await ship(session)
        session.db.begin()
        session.db.counters.next_block = 1
        session.db.commit()
        await unmount(session)

    with pytest.raises(MetadataError, match="next_block is 1, but number 1 is in use"):
        async with power.session("b"):
            pass
    async with power.session("c", options=OpenOptions(read_only=True)):
        pass


async def test_follower_of_a_state_with_a_next_number_in_use_is_not_promoted(power: Power) -> None:
    """The follower continues to show the files, and the writer keeps its lease."""
    async with power.session("a", tasks=False) as writer, following(power) as (session, listener):
        ino = write_file(writer, CONTENT)
        writer.db.counters.next_block = 1
        await listener.wait_for(await ship(writer))
        before = dict(power.store.objects)

        with pytest.raises(MetadataError, match="next_block is 1, but number 1 is in use"):
            await session.promote(force=True)

        assert power.store.objects == before
        assert not session.status.writable
        assert await read_file(session, ino) == CONTENT


async def test_infinite_number_in_a_row_does_not_prevent_the_check(power: Power) -> None:
    """SQLite stores infinity as a REAL value, which is not a number in use."""
    async with power.session("a", tasks=False) as session:
        session.db.begin()
        session.db.run("INSERT INTO xattrs VALUES (-9e999, x'61', x'62')")
        next_numbers.require_valid(session.db)
        session.db.rollback()


async def test_check_of_next_numbers_scans_no_table(power: Power) -> None:
    """A mount of many files must not read all rows."""
    statements: list[str] = []
    async with power.session("a", tasks=False) as session:
        connection = session.db.connection
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: statements.append(event["sql"]))
        next_numbers.require_valid(session.db)
        connection.trace_v2(0)
        plans = [
            row[3]
            for sql in statements
            for row in session.db.inodes.all(f"EXPLAIN QUERY PLAN {sql.replace('?', '9')}")
        ]
    assert len(plans) == 9
    assert all(plan.startswith("SEARCH") for plan in plans), plans
