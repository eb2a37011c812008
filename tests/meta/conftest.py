"""Fixtures: a new metadata database for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import JOURNAL_MODES, Pragmas
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino

COOKIE_KEY = bytes(range(16))
PROPERTIES = {"uuid": b"a-uuid", "block_bytes": b"65536", "cookie_key": COOKIE_KEY}
NOW_NS = 1_760_000_000_123_456_789

MakeDatabase = Callable[..., Database]


@pytest.fixture
def properties() -> dict[str, bytes]:
    """Return the properties that mkfs stores in a new database."""
    return dict(PROPERTIES)


@pytest.fixture
def make_database(tmp_path: Path) -> Iterator[MakeDatabase]:
    """Return a function that creates databases; all are closed after the test."""
    made: list[Database] = []

    def make(name: str = "meta.db", **pragmas: object) -> Database:
        # mypy cannot check keyword arguments that come from a dict.
        settings = Pragmas(**{"synchronous": "off", **pragmas})  # type: ignore[arg-type]
        made.append(Database.create(tmp_path / name, settings, PROPERTIES, now_ns=NOW_NS))
        return made[-1]

    yield make
    for database in made:
        database.close()


@pytest.fixture
def db(make_database: MakeDatabase) -> Database:
    """Return the database of an empty filesystem, with an open commit group."""
    database = make_database()
    database.begin()
    return database


@pytest.fixture(params=JOURNAL_MODES)
def journal_mode(request: pytest.FixtureRequest) -> str:
    """Return a journal mode of SQLite; the test runs once for each mode."""
    return str(request.param)


def create_file(db: Database, name: bytes, parent: Ino = ROOT_INO, *, mode: int = 0o100644) -> Ino:
    """Create an inode with a name, as one operation of a commit group."""
    db.begin()
    ino = inodes.create(db, mode, 0, 0, parent, 5).ino
    dentries.add(db, parent, name, ino)
    return ino


def steps_of(db: Database, work: Callable[[], object]) -> int:
    """Return the number of steps of SQLite's virtual machine that a function causes."""
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    db.connection.set_progress_handler(count, 1)
    work()
    db.connection.set_progress_handler(None)
    return steps
