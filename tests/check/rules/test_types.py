"""I70: whole numbers in columns of whole numbers."""

from typing import Final

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.check.rules import types as type_rules
from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from tests.check.healthy import Healthy

pytestmark = pytest.mark.thorough

VALUES: Final = ("x'ff00'", "'text'", "1.5")
COLUMNS: Final = [
    (table, column) for table, columns in type_rules._integers().items() for column in columns
]
KEYS: Final = {
    "dentries": "parent, cookie",
    "hard_links": "ino, parent",
    "xattrs": "ino, name",
    "block_map": "ino, block_index",
}


def spoil(healthy: Healthy, table: str, column: str, value: str) -> None:
    """Write a value of another type into the last row of a table."""
    key = KEYS.get(table, "rowid")
    where = f"({key}) = (SELECT {key} FROM {table} ORDER BY {key} DESC LIMIT 1)"
    healthy.sql(f"UPDATE {table} SET {column} = {value} WHERE {where}")


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("table", "column"), COLUMNS)
async def test_value_of_another_type_is_found_and_mended(
    healthy: Healthy, table: str, column: str, value: str
) -> None:
    """I70: seen under -n, repaired before anything computes with it; then all is in order."""
    healthy.add_lease()
    spoil(healthy, table, column, value)

    assert "I70" in (await healthy.check_all()).broken
    await healthy.check_all(Mode.ALL)
    assert (await healthy.check_all(Mode.ALL)).exit_status in {0, 1}  # reads what was found again

    assert set((await healthy.check_all()).broken) <= {"I48"}


async def test_block_whose_place_is_unknown_keeps_its_bytes(healthy: Healthy) -> None:
    """I70: content gets a file of its own, in lost+found."""
    healthy.add_lease()
    before = healthy.db.one("SELECT count(*) FROM blocks")
    spoil(healthy, "block_map", "ino", "'x'")

    await healthy.check_all(Mode.ALL)

    assert healthy.db.one("SELECT count(*) FROM blocks") == before


def test_database_whose_counters_are_no_numbers_is_opened_for_repair(healthy: Healthy) -> None:
    """A mount refuses it by name."""
    spoil(healthy, "counters", "next_ino", "x'ff'")
    path = healthy.db.path
    healthy.db.close()

    with pytest.raises(FormatError, match="counters"):
        Database.open(path, Pragmas())
    Database.open(path, Pragmas(), repairing=True).close()
