"""Functions that compare the rows of two databases."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.db.schema import REPLICATED_TABLES

# The counters are omitted, because a writer corrects them when it opens the database.
SETTLED = tuple(table for table in REPLICATED_TABLES if table != "counters")
ON_ALL_HOSTS = (*REPLICATED_TABLES, "blocks", "packs", "totals")


def contents(
    connection: apsw.Connection, tables: Iterable[str] = REPLICATED_TABLES
) -> dict[str, list[object]]:
    """Return all rows of the given tables."""
    return {
        table: list(connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2")) for table in tables
    }


def contents_at(path: Path) -> dict[str, list[object]]:
    """Return the rows of a closed database that must be equal on all hosts."""
    db = Database.open(path, Pragmas(), read_only=True)
    try:
        return contents(db.connection, ON_ALL_HOSTS)
    finally:
        db.close()


def require_equal(merged: dict[str, list[Any]], single: dict[str, list[Any]]) -> None:
    """Require equal rows, but in *merged* the txg in which a pack became unused may be later."""
    deaths = [[row[5] for row in one["packs"]] for one in (merged, single)]
    for one in (merged, single):
        one["packs"] = [row[:5] for row in one["packs"]]
    assert merged == single
    for later, death in zip(*deaths, strict=True):
        assert (later is None) == (death is None)
        assert later is None or later >= death
