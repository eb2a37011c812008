"""The limit on the growth of the WAL while an upload needs a snapshot."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from s3fs_meta.errors import StoreUnavailableError
from s3fs_meta.limits import MIB
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO
from s3fs_meta.sync.changelog.wal_bound import WalBound

PROPERTIES = {"uuid": b"a-uuid", "block_bytes": b"65536", "cookie_key": bytes(range(16))}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Return a database in WAL mode."""
    db = Database.create(tmp_path / "meta.db", Pragmas(), PROPERTIES)
    yield db
    db.close()


def create_inodes(db: Database, count: int) -> None:
    """Create some inodes and commit them, so that the WAL grows."""
    db.begin()
    for _ in range(count):
        inodes.create(db, 0o100644, 0, 0, ROOT_INO, 0)
    db.commit()


async def test_upload_is_stopped_once_the_wal_has_grown_too_much(db: Database) -> None:
    bound = WalBound(db, 1 * MIB)
    steps = []

    async def upload() -> None:
        for step in range(100):
            create_inodes(db, 1_000)
            bound.check()
            steps.append(step)
            await trio.lowlevel.checkpoint()

    assert not await bound.completes(upload)
    assert 0 < len(steps) < 100
    with pytest.raises(StoreUnavailableError, match="the WAL grew by 1 MiB"):
        await bound.require(upload)


async def test_upload_is_not_stopped_while_the_wal_is_small(db: Database) -> None:
    bound = WalBound(db, 1 * MIB)
    create_inodes(db, 60_000)  # Growth of the WAL before the upload does not count.
    assert db.wal_bytes > 1 * MIB

    async def upload() -> None:
        create_inodes(db, 1)
        bound.check()
        await trio.lowlevel.checkpoint()

    assert await bound.completes(upload)
    assert bound.scope is None
    create_inodes(db, 60_000)
    bound.check()  # No upload is running, so nothing is stopped.
