"""Tests of how often programs cause syncs of database rows, on a real mount."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

import pytest

from tests.fuse.conftest import Mounted

INSERTS: Final = 20

pytestmark = pytest.mark.mount


def insert(database: Path, journal_mode: str) -> None:
    """Insert rows into a table, each in its own transaction."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode={journal_mode}")
        connection.execute("CREATE TABLE IF NOT EXISTS log (line TEXT)")
        for number in range(INSERTS):
            connection.execute("INSERT INTO log VALUES (?)", (str(number),))


async def test_sqlite_transaction_on_a_mounted_file_syncs_metadata_rows_once(
    mounted: Mounted,
) -> None:
    """Of a transaction's four syncs, only the sync of the new journal finds changed rows.

    After this sync the directory does not change. The header of the journal and the page of the
    database are overwritten in place. In an earlier version each of the four syncs synced rows.
    """
    session = mounted.handlers.session
    await mounted.run(insert, mounted.path / "db", "delete")
    await session.durability.sync_all()
    row_syncs: list[int] = []
    sync = session.db.sync_wal
    session.db.sync_wal = lambda: (row_syncs.append(1), sync())[1]  # type: ignore[method-assign,func-returns-value]

    await mounted.run(insert, mounted.path / "db", "delete")

    # A new page of the database and the background sync add a few fsyncs.
    assert INSERTS <= len(row_syncs) <= INSERTS + INSERTS // 2
