"""Tests of changelogs after changes of rows that are damaged only on the writer's disk."""

import pytest

from s3fs_meta.codec.changelog import Kind
from s3fs_meta.meta import changesets
from s3fs_meta.meta.tables import inodes
from s3fs_meta.sync.chain import abandoned_txgs, chain
from tests.sync.conftest import Power, read_file, write_file

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("value", ["'text'", "x'ff00'", "CAST(x'ff00' AS TEXT)", "1.5"])
@pytest.mark.parametrize("change", ["UPDATE inodes SET uid = 5", "DELETE FROM inodes"])
async def test_change_of_a_damaged_row_is_shipped_as_an_image(
    power: Power, change: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No host could apply a changelog with the damaged value to its own row."""
    async with power.session("a", tasks=False) as session:
        bad, good = write_file(session, b"bad"), write_file(session, b"good")
        await session.flush()
        session.db.commit()
        # A statement outside a commit group is not recorded, like damage on the disk.
        session.db.connection.execute(f"UPDATE inodes SET uid = {value} WHERE ino = ?", (bad,))
        session.db.begin()
        session.db.inodes.run(f"{change} WHERE ino = ?", (bad,))

        link = await session.flush()
        later = write_file(session, b"later")
        await session.flush()

        assert link is not None
        volume = session.volume
        fetched = await chain.fetch(volume.store, volume.keyring, volume.uuid, link.txg)
        assert fetched.changelog.kind is Kind.IMAGE
        assert "was damaged on this host" in caplog.text
        await session.close()
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, good) == b"good"
        assert await read_file(session, later) == b"later"
        row = inodes.find(session.db, bad)
        assert row is None if change.startswith("DELETE") else row is not None


async def test_image_can_be_made_after_the_change_of_a_damaged_row(
    power: Power, caplog: pytest.LogCaptureFixture
) -> None:
    """The image itself is published as the next txg, so no changelog is needed."""
    async with power.session("a", tasks=False) as session:
        bad, good = write_file(session, b"bad"), write_file(session, b"good")
        await session.flush()
        session.db.commit()
        session.db.connection.execute("UPDATE inodes SET uid = 'text' WHERE ino = ?", (bad,))
        session.db.begin()
        session.db.inodes.run("UPDATE inodes SET uid = 5 WHERE ino = ?", (bad,))

        head = await session.make_image()

        assert head.txg == session.link.txg
        assert abandoned_txgs.wanted(session.db) is None
        assert caplog.text.count("was damaged on this host") == 1
        await session.close()
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, good) == b"good"


def test_empty_changeset_has_no_invalid_values() -> None:
    assert not changesets.has_invalid_values(b"")


@pytest.mark.parametrize(
    ("table", "damage"),
    [
        ("block_map", "UPDATE block_map SET block = -7"),
        ("xattrs", "INSERT INTO xattrs SELECT -7, x'6e', x'76' FROM inodes"),
    ],
)
async def test_negative_number_in_a_deleted_row_is_shipped_as_an_image(
    power: Power, table: str, damage: str
) -> None:
    """Other hosts refuse a changelog with a negative number of an inode or block."""
    async with power.session("a", tasks=False) as session:
        bad, good = write_file(session, b"bad"), write_file(session, b"good")
        await session.flush()
        session.db.commit()
        session.db.connection.execute(f"{damage} WHERE ino = ?", (bad,))
        await session.make_image()
        session.db.begin()
        session.db.run(f"DELETE FROM {table} WHERE ino IN (?, -7)", (bad,))

        link = await session.flush()

        assert link is not None
        volume = session.volume
        fetched = await chain.fetch(volume.store, volume.keyring, volume.uuid, link.txg)
        assert fetched.changelog.kind is Kind.IMAGE
        await session.close()
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, good) == b"good"
