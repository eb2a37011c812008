"""The check of the schema in a database that was downloaded from the bucket."""

from pathlib import Path

import apsw
import pytest

from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import (
    DATABASE_SQL_BYTES_MAX,
    IMAGE_VALUE_BYTES_MAX,
    MIB,
    XATTR_VALUE_BYTES_MAX,
)
from s3fs_meta.meta.db import schema
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.offline.restored_schema import require_ours

pytestmark = pytest.mark.thorough

KEY = "image/1/manifest"
FACTS = {"uuid": b"u", "block_bytes": b"1048576", "cookie_key": bytes(16)}
VERSION = "UPDATE properties SET value = {} WHERE name = 'schema_version'"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Return the path of an image's database."""
    path = tmp_path / "image.db"
    Database.create(path, Pragmas(journal_mode="delete"), FACTS).close()
    image_copy.finish(path, (), ())
    return path


def change(path: Path, *statements: str) -> None:
    """Change a database with SQL, as a different program could."""
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def indexes(path: Path) -> set[str]:
    """Return the names of all indexes in a database."""
    connection = apsw.Connection(str(path))
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'").fetchall()
    connection.close()
    return {str(name) for (name,) in names}


def test_schema_of_an_image_made_by_this_program_is_accepted(image: Path) -> None:
    before = image.read_bytes()

    require_ours(image, KEY)

    assert image.read_bytes() == before


def test_image_of_an_earlier_schema_version_is_accepted(image: Path) -> None:
    """An image of schema version 1 is accepted before and after its upgrade."""
    change(image, "ALTER TABLE inodes DROP COLUMN btime_delta_ns", VERSION.format("x'31'"))
    require_ours(image, KEY)

    Database.open(image, Pragmas(journal_mode="delete")).close()
    image_copy.finish(image, (), ())
    require_ours(image, KEY)


@pytest.mark.parametrize(
    "statements",
    [
        ("CREATE TRIGGER x AFTER UPDATE ON inodes BEGIN DELETE FROM dentries; END",),
        ("CREATE TRIGGER x AFTER UPDATE ON counters BEGIN SELECT RAISE(IGNORE); END",),
        ("CREATE VIEW x AS SELECT * FROM inodes",),
        ("DROP TABLE xattrs", "CREATE VIEW xattrs AS SELECT 1 AS ino, x'' AS name, x'' AS value"),
        ("DROP TABLE symlinks",),
        ("ALTER TABLE symlinks ADD COLUMN more INTEGER",),
        ("ALTER TABLE inodes DROP COLUMN btime_delta_ns",),
        ("DROP TABLE symlinks", "CREATE TABLE symlinks (ino INTEGER PRIMARY KEY NOT NULL, target)"),
        (
            "DROP TABLE symlinks",
            "CREATE TABLE symlinks (ino INTEGER PRIMARY KEY NOT NULL,"
            " target BLOB NOT NULL CHECK (length(hex(zeroblob(ino))) > 0))",
        ),
        (
            "DROP TABLE symlinks",
            "CREATE TABLE symlinks (ino INTEGER PRIMARY KEY NOT NULL,"
            " target BLOB NOT NULL) WITHOUT ROWID",
        ),
        ("CREATE UNIQUE INDEX x ON inodes (mode)",),
        ("CREATE INDEX x ON inodes (length(hex(zeroblob(size_bytes))))",),
        ("DROP INDEX inodes_orphaned", "CREATE INDEX inodes_orphaned ON inodes (ino)"),
        ("ANALYZE",),
        ("DELETE FROM properties WHERE name = 'schema_version'",),
        (VERSION.format("'1'"),),
        (VERSION.format("x'2d31'"),),
        (VERSION.format("x'3939393939393939393939'"),),
        ("PRAGMA writable_schema = 1", "UPDATE sqlite_schema SET sql = 'x' WHERE name = 'xattrs'"),
    ],
    ids=str,
)
def test_image_with_a_changed_schema_is_refused(image: Path, statements: tuple[str, ...]) -> None:
    change(image, *statements)

    with pytest.raises(FormatError, match=KEY):
        require_ours(image, KEY)


def test_error_about_an_image_of_a_newer_schema_advises_an_upgrade(image: Path) -> None:
    """An image of a newer schema version is not reported as damaged."""
    change(image, VERSION.format("x'39'"))

    with pytest.raises(NewerFormatError, match="schema version 9"):
        require_ours(image, KEY)


def test_image_that_is_not_a_database_is_refused(image: Path) -> None:
    image.write_bytes(b"x" * 8192)

    with pytest.raises(FormatError, match=KEY):
        require_ours(image, KEY)


def test_missing_index_of_an_image_is_created(image: Path) -> None:
    """A missing index is created from its table, because an index contains no other data."""
    before = indexes(image)
    change(image, "DROP INDEX blocks_by_hash")

    require_ours(image, KEY)

    assert indexes(image) == before


def test_image_with_an_unknown_table_is_accepted(image: Path) -> None:
    """fsck reports a table that this program does not know, and keeps it."""
    change(image, "CREATE TABLE notes (a INTEGER)", "CREATE INDEX of_notes ON notes (a)")

    require_ours(image, KEY)

    assert "of_notes" in indexes(image)


def test_image_with_a_schema_that_is_not_text_is_refused(image: Path) -> None:
    data = image.read_bytes()
    image.write_bytes(data.replace(b"-- with its namespace", b"-- \xff\xfeth its namespace"))

    with pytest.raises(FormatError):
        require_ours(image, KEY)


_TABLES = (*schema.REPLICATED_TABLES, *schema.LOCATION_TABLES)


@pytest.mark.parametrize("kind", ["BLOB", "TEXT"])
@pytest.mark.parametrize("table", _TABLES)
def test_value_above_the_length_limit_is_refused(image: Path, table: str, kind: str) -> None:
    """A value above the length limit could make a directory listing need gigabytes of memory."""
    connection = apsw.Connection(str(image))
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    connection.close()
    healthy = image.read_bytes()
    wide = f"CAST(zeroblob({IMAGE_VALUE_BYTES_MAX + 1}) AS {kind})"
    for changed in range(len(columns)):
        values = [wide if at == changed else "1" for at in range(len(columns))]
        row = f"INSERT OR REPLACE INTO {table} VALUES ({', '.join(values)})"
        try:
            change(image, row)
        except (
            apsw.MismatchError,
            apsw.ConstraintError,
        ):  # SQLite itself refuses a long value in some columns.
            continue
        with pytest.raises(
            FormatError, match=f"its table {table} has a value of more than|too big"
        ):
            require_ours(image, KEY)
        image.write_bytes(healthy)


def test_values_of_the_maximum_length_are_accepted(image: Path) -> None:
    """The longest possible xattr, name and symlink target are accepted."""
    change(
        image,
        f"INSERT INTO xattrs VALUES (1, zeroblob(255), zeroblob({XATTR_VALUE_BYTES_MAX}))",
        "INSERT INTO dentries VALUES (1, 256, zeroblob(255), 1)",
        "INSERT INTO symlinks VALUES (1, zeroblob(4095))",
    )
    require_ours(image, KEY)


def test_schema_definition_above_the_length_limit_is_refused(image: Path) -> None:
    """Schema definitions have a length limit, because SQLite parses all of them before a query."""
    spaces = " " * DATABASE_SQL_BYTES_MAX
    change(image, f"CREATE TABLE foreign_table (a,{spaces} b)")
    with pytest.raises(FormatError):
        require_ours(image, KEY)


@pytest.mark.parametrize(
    "row",
    [
        "dentries VALUES (1, 256, {0}, 1)",
        "properties VALUES ('damaged/9', {0})",
        "properties VALUES (CAST({0} AS TEXT), x'31')",
        "inodes VALUES (77, {0}, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0)",
        "xattrs VALUES (1, x'61', {0})",
    ],
    ids=["dentries", "properties", "names of properties", "inodes", "xattrs"],
)
def test_refused_long_value_is_not_read_into_memory(image: Path, row: str) -> None:
    """The check reads lengths instead of values, so an oversized value uses no memory."""
    change(image, f"INSERT INTO {row.format(f'zeroblob({64 * MIB})')}")
    apsw.memory_high_water(True)
    before = apsw.memory_used()

    with pytest.raises(FormatError):
        require_ours(image, KEY)

    assert apsw.memory_high_water() - before < 16 * MIB


@pytest.mark.parametrize("name", [*schema.LOCAL_TABLES, "Outbox"])
def test_image_with_a_local_table_is_refused(image: Path, name: str) -> None:
    """This host would upload a forged outbox, or could not open tables with other columns."""
    change(image, f"CREATE TABLE {name} (x)")

    with pytest.raises(FormatError, match=f"local table {name}"):
        require_ours(image, KEY)
