"""Functions on changesets, tested with changesets of random operations.

Each result is compared with the rows before and after these operations.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from s3fs_meta.errors import DatabaseFullError, FormatError
from s3fs_meta.limits import IMAGE_VALUE_BYTES_MAX
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.schema import create_tables
from s3fs_meta.meta.tables import block_map, dentries, inodes, xattrs
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Cookie, Ino
from tests.damage import flipped
from tests.meta.conftest import MakeDatabase
from tests.meta.random_tree import Tree
from tests.meta.recorders import SessionRecorder, apply_in_transaction, recorded
from tests.rows import contents

Tables = dict[str, list[Any]]

GROUPS = 5
STEPS = 30


class Recorded:
    """A database with its recorded changesets, and a copy made before the first commit group."""

    def __init__(self, db: Database, copy: apsw.Connection, seed: int) -> None:
        self.db = db
        self.copy = copy
        self.recorder: SessionRecorder = recorded(db)
        self.tree = Tree(db, seed)

    @property
    def changesets(self) -> list[bytes]:
        """Return the recorded changesets, one per commit group."""
        return self.recorder.changesets

    def group(self) -> tuple[Tables, Tables, bytes]:
        """Commit random operations; return the rows before and after them, and the changeset."""
        before = rows(self.db.connection)
        for _ in range(STEPS):
            self.tree.step()
        self.db.commit()
        return before, rows(self.db.connection), self.changesets[-1]

    def one(self, change: Callable[[Database], object]) -> bytes:
        """Return the changeset of one change."""
        self.db.begin()
        change(self.db)
        self.db.commit()
        return self.changesets[-1]


def rows(connection: apsw.Connection) -> Tables:
    """Return all replicated rows, by table."""
    return contents(connection)


@pytest.fixture(params=[1, 2])
def source(
    request: pytest.FixtureRequest, make_database: MakeDatabase, tmp_path: Path
) -> Iterator[Recorded]:
    """Yield a database with some files that records its changes, and its copy."""
    db = make_database()
    tree = Tree(db, 100 + request.param)
    for _ in range(STEPS):
        tree.step()
    db.commit()
    snapshot = db.open_snapshot()
    snapshot.copy_to(tmp_path / "copy.db")
    snapshot.close()
    copy = apsw.Connection(str(tmp_path / "copy.db"))
    made = Recorded(db, copy, request.param)
    made.tree.names = tree.names
    yield made
    copy.close()


def changeset_of(table: str, insert: str) -> bytes:
    """Return the changeset of an INSERT into a table with the given definition."""
    connection = apsw.Connection(":memory:")
    connection.execute(table)
    session = apsw.Session(connection, "main")
    session.attach()
    connection.execute(insert)
    recorded_changes = session.changeset()
    session.close()
    connection.close()
    return recorded_changes


# --- merging and applying changesets -----------------------------------------------------------


def test_merged_changeset_equals_its_parts_applied_in_order(source: Recorded) -> None:
    for _ in range(GROUPS):
        source.group()
    merged = changesets.merge(iter(source.changesets))
    assert changesets.merge(source.changesets, source.db.connection) == merged
    source.copy.execute("SAVEPOINT one_by_one")
    for changeset in source.changesets:
        changesets.apply(source.copy, changeset, "changes")
    assert contents(source.copy) == contents(source.db.connection)
    source.copy.execute("ROLLBACK TO one_by_one; RELEASE one_by_one")
    assert contents(source.copy) != contents(source.db.connection)
    apply_in_transaction(source.copy, merged)
    assert contents(source.copy) == contents(source.db.connection)


def test_merged_changeset_omits_rows_that_were_added_and_removed(source: Recorded) -> None:
    """If a file is created and removed by merged groups, only the counters remain changed."""

    def make(db: Database) -> None:
        made = inodes.create(db, 0o100644, 1, 2, ROOT_INO, 5)
        dentries.add(db, ROOT_INO, b"short-lived", made.ino)

    def remove(db: Database) -> None:
        inodes.delete(db, dentries.remove(db, ROOT_INO, b"short-lived"))

    made, removed = source.one(make), source.one(remove)
    merged = changesets.merge([made, removed])
    assert changesets.summary(made) == (1, 0, 0, 1, 0)
    assert changesets.summary(merged) == (0, 0, 0, 0, 0)
    assert len(merged) < min(len(made), len(removed))
    assert changesets.is_news(made)
    assert not changesets.is_news(merged)


def test_empty_changeset_can_be_merged_and_applied_and_queried(source: Recorded) -> None:
    assert changesets.merge([]) == b""
    assert changesets.merge([b"", b""]) == b""
    apply_in_transaction(source.copy, b"")
    assert not changesets.is_news(b"")
    assert changesets.block_refs(b"") == {}
    assert changesets.named_blocks(b"") == set()
    assert changesets.touched(b"") == (set(), set(), set(), set())
    assert changesets.summary(b"") == (0, 0, 0, 0, 0)


def test_changesets_with_different_columns_are_not_merged() -> None:
    table = "CREATE TABLE symlinks (ino INTEGER PRIMARY KEY NOT NULL, target"
    narrow = changeset_of(f"{table})", "INSERT INTO symlinks VALUES (1, 2)")
    wide = changeset_of(f"{table}, b)", "INSERT INTO symlinks VALUES (1, 2, 3)")
    strange = changeset_of("CREATE TABLE t (a PRIMARY KEY NOT NULL)", "INSERT INTO t VALUES (1)")
    for other in (wide, strange):
        with pytest.raises(FormatError, match="changeset 2 of a merge"):
            changesets.merge([narrow, other])


CONFLICTS = [
    (
        "UPDATE dentries SET name = x'00' WHERE name = x'61'",
        "dentries: the row has different values",
    ),
    ("DELETE FROM dentries WHERE name = x'61'", "dentries: the row is missing"),
    ("INSERT INTO symlinks VALUES (77, x'00')", "symlinks: the row already exists"),
]


@pytest.mark.parametrize(("other", "what"), CONFLICTS)
def test_conflicting_changeset_is_undone_without_ending_the_transaction(
    make_database: MakeDatabase, other: str, what: str
) -> None:
    """After a changeset conflicts with a row, its transaction can continue."""
    db, second = make_database(), make_database("second.db")
    recorder = recorded(db)
    for database in (db, second):
        database.begin()
        dentries.add(database, ROOT_INO, b"a", Ino(5))
        database.commit()
    db.begin()
    db.inodes.run(
        "INSERT INTO inodes SELECT 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0"
    )  # The inserted row must cause no conflict.
    db.run("INSERT INTO symlinks VALUES (77, x'01')")
    dentries.remove(db, ROOT_INO, b"a")
    db.commit()
    connection = second.connection
    connection.execute("BEGIN")
    connection.execute(other)
    before = contents(connection)
    with pytest.raises(FormatError) as refused:
        changesets.apply(connection, recorder.changesets[-1], "changelog/7")
    assert refused.value.key == "changelog/7"
    assert refused.value.what == f"the changeset does not fit table {what}"
    assert contents(connection) == before
    assert connection.in_transaction
    connection.execute("COMMIT")
    assert contents(connection) == before


def test_changeset_that_violates_a_constraint_is_refused(source: Recorded) -> None:
    """A changeset that contains NULL for a NOT NULL column is refused."""
    nullable = changeset_of(
        "CREATE TABLE symlinks (ino INTEGER PRIMARY KEY NOT NULL, target)",
        "INSERT INTO symlinks VALUES (1000, NULL)",
    )
    source.copy.execute("BEGIN")
    with pytest.raises(FormatError, match="does not fit table symlinks: a constraint forbids it"):
        changesets.apply(source.copy, nullable, "changes")


def test_changeset_that_violates_a_foreign_key_is_refused() -> None:
    """A database from the bucket may have a foreign key, although the schema has none."""
    connection = apsw.Connection(":memory:")
    create_tables(connection)
    connection.pragma("foreign_keys", True)
    connection.execute(
        "DROP TABLE symlinks; CREATE TABLE symlinks"
        " (ino INTEGER PRIMARY KEY NOT NULL REFERENCES inodes (ino), target BLOB NOT NULL)"
    )
    orphan = changeset_of(
        "CREATE TABLE symlinks (ino INTEGER PRIMARY KEY NOT NULL, target)",
        "INSERT INTO symlinks VALUES (1000, x'00')",
    )
    connection.execute("BEGIN")
    with pytest.raises(FormatError, match="a foreign key forbids it"):
        changesets.apply(connection, orphan, "changes")
    assert connection.execute("SELECT * FROM symlinks").fetchall() == []
    connection.close()


STRANGE = {
    "unknown": (
        "CREATE TABLE strange (a PRIMARY KEY NOT NULL)",
        "'strange': not a replicated table",
    ),
    "local": ("CREATE TABLE packs (a PRIMARY KEY NOT NULL)", "'packs': not a replicated table"),
    "fewer": ("CREATE TABLE symlinks (a PRIMARY KEY NOT NULL)", "symlinks: the columns differ"),
    "more": (
        "CREATE TABLE symlinks (a PRIMARY KEY NOT NULL, b, c)",
        "symlinks: the columns differ",
    ),
    "key": ("CREATE TABLE symlinks (a, b PRIMARY KEY NOT NULL)", "symlinks: the columns differ"),
    "case": ("CREATE TABLE SYMLINKS (a PRIMARY KEY NOT NULL, b)", "'SYMLINKS': not a replicated"),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_changeset_with_an_unknown_table_is_refused(source: Recorded, strange: str) -> None:
    """SQLite itself would skip an unknown table of a changeset and report success."""
    table, what = STRANGE[strange]
    columns = table.count(",") + 1
    insert = f"INSERT INTO {table.split()[2]} VALUES ({', '.join('1' * columns)})"
    changeset = changeset_of(table, insert)
    before = contents(source.copy)
    source.copy.execute("BEGIN")
    with pytest.raises(FormatError, match=what):
        changesets.apply(source.copy, changeset, "changes")
    assert contents(source.copy) == before
    for ask in (changesets.is_news, changesets.block_refs, changesets.summary, changesets.touched):
        with pytest.raises(FormatError, match=what):
            ask(changeset)


def test_changeset_whose_columns_differ_from_the_table_is_refused(source: Recorded) -> None:
    """A changeset must have the columns of the tables in the actual database."""
    _, _, changeset = source.group()
    source.copy.execute("BEGIN; ALTER TABLE inodes ADD COLUMN more")
    with pytest.raises(FormatError, match="does not fit table inodes: the columns differ"):
        changesets.apply(source.copy, changeset, "changes")
    source.copy.execute("DROP TABLE inodes")
    with pytest.raises(FormatError, match="does not fit table inodes: the columns differ"):
        changesets.apply(source.copy, changeset, "changes")


def test_full_disk_is_not_reported_as_an_invalid_changeset(source: Recorded) -> None:
    """A changeset that fails on a full disk is valid, and can be applied later."""
    big = changeset_of(
        "CREATE TABLE symlinks (ino INTEGER PRIMARY KEY NOT NULL, target)",
        "INSERT INTO symlinks VALUES (100000, zeroblob(1000000))",
    )
    pages = source.copy.pragma("page_count")
    source.copy.pragma("max_page_count", pages)
    source.copy.execute("BEGIN")
    with pytest.raises(DatabaseFullError):
        changesets.apply(source.copy, big, "changes")
    if source.copy.in_transaction:
        source.copy.execute("ROLLBACK")
    source.copy.pragma("max_page_count", 2 * pages + 1000)
    apply_in_transaction(source.copy, big)


# --- contents of changesets --------------------------------------------------------------------


def changed_rows(before: Tables, after: Tables, *tables: str) -> list[Any]:
    """Return the rows of some tables that differ between two states."""
    return [row for table in tables for row in set(before[table]) ^ set(after[table])]


def test_reference_count_changes_are_computed_from_changesets(source: Recorded) -> None:
    """Changes of reference counts can be computed from one changeset or from merged changesets."""

    def refs(tables: Tables) -> Counter[BlockId]:
        return Counter(block for _, _, block in tables["block_map"])

    first = rows(source.db.connection)
    last = first
    for _ in range(GROUPS):
        before, last, changeset = source.group()
        difference = refs(last)
        difference.subtract(refs(before))
        assert changesets.block_refs(changeset) == {b: n for b, n in difference.items() if n}
    difference = refs(last)
    difference.subtract(refs(first))
    merged = changesets.merge(source.changesets)
    assert changesets.block_refs(merged) == {b: n for b, n in difference.items() if n}


def test_block_moved_within_the_map_keeps_its_reference_count(source: Recorded) -> None:
    source.one(lambda db: block_map.set(db, Ino(9), BlockIndex(0), BlockId(500)))

    def move(db: Database) -> None:
        block_map.remove(db, Ino(9), BlockIndex(0))
        block_map.set(db, Ino(9), BlockIndex(1), BlockId(500))

    changeset = source.one(move)
    assert changesets.block_refs(changeset) == {}
    assert changesets.named_blocks(changeset) == {500}


def test_changeset_names_the_blocks_in_new_or_changed_rows(source: Recorded) -> None:
    """The named blocks do not include blocks in deleted rows of the block map."""
    for _ in range(GROUPS):
        before, after, changeset = source.group()
        new = set(after["block_map"]) - set(before["block_map"])
        assert changesets.named_blocks(changeset) == {block for _, _, block in new}


def test_changeset_touches_the_names_of_changed_dentries(source: Recorded) -> None:
    """If only the inode of a dentry changed, the changeset has its cookie, but not its name."""
    for _ in range(GROUPS):
        before, after, changeset = source.group()
        found = changesets.touched(changeset)
        by_cookie = {(parent, cookie): name for parent, cookie, name, _ in after["dentries"]}
        named = found.names | {(key[0], by_cookie[key]) for key in found.cookies}
        changed = changed_rows(before, after, "dentries")
        assert named == {(parent, name) for parent, _, name, _ in changed}


def test_changed_rows_determine_which_inodes_and_contents_a_changeset_touches(
    source: Recorded,
) -> None:
    """A new size or a changed block is new content of an inode; a new symlink row is not."""
    for _ in range(GROUPS):
        before, after, changeset = source.group()
        found = changesets.touched(changeset)
        changed = changed_rows(before, after, "inodes", "hard_links", "symlinks", "xattrs")
        assert found.inodes == {row[0] for row in changed}
        sizes, old_sizes = (
            {(row[0], row[5]) for row in tables["inodes"]} for tables in (after, before)
        )
        new = {row[0] for row in after["inodes"]} - {row[0] for row in before["inodes"]}
        mapped = {row[0] for row in changed_rows(before, after, "block_map")}
        assert found.contents == {ino for ino, _ in sizes ^ old_sizes if ino not in new} | mapped


def test_dentry_with_a_new_inode_is_identified_by_its_cookie(source: Recorded) -> None:
    """A rename over a name changes the inode of a dentry; its changeset has only the cookie."""
    source.one(lambda db: dentries.add(db, ROOT_INO, b"kept", Ino(50)))
    changeset = source.one(lambda db: dentries.replace(db, ROOT_INO, b"kept", Ino(51)))
    found = changesets.touched(changeset)
    [(cookie,)] = source.db.all("SELECT cookie FROM dentries WHERE name = ?", (b"kept",))
    assert found.names == set()
    assert found.cookies == {(ROOT_INO, Cookie(cookie))}


def test_changeset_touches_both_names_if_the_new_name_reuses_a_cookie(source: Recorded) -> None:
    """If a new name takes the cookie of a removed name, SQLite records one UPDATE for both."""
    source.db.name_hash = lambda _name: 12345
    source.one(lambda db: dentries.add(db, ROOT_INO, b"first", Ino(50)))

    def take_over(db: Database) -> None:
        dentries.remove(db, ROOT_INO, b"first")
        dentries.add(db, ROOT_INO, b"second", Ino(51))

    found = changesets.touched(source.one(take_over))
    assert found.names == {(ROOT_INO, b"first"), (ROOT_INO, b"second")}
    assert found.cookies == set()


def test_summary_of_a_changeset_contains_its_number_of_changed_rows(source: Recorded) -> None:
    """The summary contains the numbers of changed rows of inodes, dentries and the block map."""
    for _ in range(GROUPS):
        before, after, changeset = source.group()
        old, new = ({row[0]: row for row in tables["inodes"]} for tables in (before, after))
        counted = changesets.summary(changeset)
        assert counted.created == len(new.keys() - old.keys())
        assert counted.removed == len(old.keys() - new.keys())
        assert counted.changed == sum(old[ino] != new[ino] for ino in old.keys() & new.keys())
        entries = {row[:2] for row in changed_rows(before, after, "dentries")}
        blocks = {row[:2] for row in changed_rows(before, after, "block_map")}
        assert (counted.names, counted.blocks) == (len(entries), len(blocks))


# --- damage to changesets ----------------------------------------------------------------------


def use_damaged(connection: apsw.Connection, changeset: bytes) -> int:
    """Call every function with a damaged changeset; return how many functions refused it."""
    refused = 0
    before = contents(connection)

    def apply(damaged: bytes) -> None:
        connection.execute("SAVEPOINT damaged")
        try:
            changesets.apply(connection, damaged, "damaged")
        except FormatError:
            assert contents(connection) == before
            raise
        finally:
            connection.execute("ROLLBACK TO damaged; RELEASE damaged")

    functions: list[Callable[[bytes], object]] = [
        apply,
        lambda damaged: changesets.merge([damaged]),
        changesets.is_news,
        changesets.block_refs,
        changesets.named_blocks,
        changesets.touched,
        changesets.summary,
    ]
    for function in functions:
        try:
            function(changeset)
        except FormatError:
            refused += 1
    return refused


def small_changeset(source: Recorded) -> bytes:
    """Return a small changeset that contains all kinds of changes."""
    for _ in range(2):
        source.tree.step()
    source.db.begin()
    block_map.set(source.db, Ino(60), BlockIndex(0), BlockId(500))
    source.db.commit()
    return source.changesets[-1]


def test_truncated_changeset_is_refused(source: Recorded) -> None:
    changeset = small_changeset(source)
    refusals = [use_damaged(source.copy, changeset[:length]) for length in range(len(changeset))]
    assert set(refusals) <= {0, 6, 7}  # is_news() may return before it reads the damage.
    assert refusals.count(0) < 20
    assert use_damaged(source.copy, changeset) == 0


@pytest.mark.parametrize("flips", [100, pytest.param(3000, marks=pytest.mark.slow)])
def test_changeset_with_flipped_bits_is_refused_or_harmless(source: Recorded, flips: int) -> None:
    """A changeset with flipped bits raises FormatError or no error."""
    rnd = random.Random(flips)
    changeset = small_changeset(source) if flips == 100 else source.group()[2]
    before = contents(source.copy)
    refused = 0
    for _ in range(flips):
        damaged = changeset
        for _ in range(rnd.randrange(1, 4)):
            damaged = flipped(damaged, rnd.randrange(len(damaged)), rnd.randrange(8))
        refused += use_damaged(source.copy, damaged) > 0
    assert refused > flips // 4
    assert contents(source.copy) == before


def test_changeset_with_a_value_of_the_wrong_type_is_refused() -> None:
    """SQLite accepts text in an integer column, so the functions must check the types."""
    table = "(ino INTEGER NOT NULL, i INTEGER NOT NULL, block, PRIMARY KEY (ino, i))"
    text = changeset_of(
        f"CREATE TABLE block_map {table} WITHOUT ROWID", "INSERT INTO block_map VALUES (1, 0, 'a')"
    )
    for ask in (changesets.block_refs, changesets.named_blocks):
        with pytest.raises(FormatError):
            ask(text)
    table = "(p INTEGER NOT NULL, c INTEGER NOT NULL, name, ino, PRIMARY KEY (p, c))"
    text = changeset_of(
        f"CREATE TABLE dentries {table} WITHOUT ROWID", "INSERT INTO dentries VALUES (1, 0, 'a', 5)"
    )
    with pytest.raises(FormatError):
        changesets.touched(text)


def test_parts_of_a_split_changeset_contain_all_rows_of_the_original(
    make_database: MakeDatabase, tmp_path: Path
) -> None:
    """A changeset that is too large for one object is split into parts of limited size."""
    db = make_database()
    snapshot = db.open_snapshot()
    snapshot.copy_to(tmp_path / "copy.db")
    snapshot.close()
    copy = apsw.Connection(str(tmp_path / "copy.db"))
    recorder = recorded(db)
    db.begin()
    for number in range(50):
        ino = inodes.create(db, 0o100644, 0, 0, Ino(1), 0).ino
        xattrs.set(db, ino, b"user.large", bytes([number]) * 3000)
    db.commit()
    [whole] = recorder.changesets

    pieces = changesets.split(whole, 10_000)

    assert len(pieces) > 10
    assert max(len(piece) for piece in pieces) < 12_000
    copy.execute("BEGIN")
    for piece in reversed(pieces):
        changesets.apply(copy, piece, "piece")
    copy.execute("COMMIT")
    assert contents(copy) == contents(db.connection)
    assert changesets.split(whole, len(whole)) == [whole]


def test_changeset_with_a_value_above_the_length_limit_is_refused(
    make_database: MakeDatabase,
) -> None:
    """A value's length is limited, because a small compressed object may contain a huge name."""
    db = make_database()
    changeset = changeset_of(
        "CREATE TABLE symlinks (ino INTEGER PRIMARY KEY NOT NULL, target BLOB NOT NULL)",
        f"INSERT INTO symlinks VALUES (9, zeroblob({IMAGE_VALUE_BYTES_MAX + 1}))",
    )
    db.begin()
    with pytest.raises(FormatError, match="changelog/1"):
        changesets.apply(db.connection, changeset, "changelog/1")
    assert db.all("SELECT * FROM symlinks") == []
