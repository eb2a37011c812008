"""Inodes and names that a changeset changes, with their rows before and after the change."""

from collections.abc import Callable
from typing import Any

import pytest

from s3fs_meta.errors import FormatError
from s3fs_meta.meta import row_history
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.schema import INODE_COLUMNS
from s3fs_meta.meta.row_history import ChangedRows, InodeChange, LostName
from s3fs_meta.meta.tables import block_map, dentries, inodes, xattrs
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Cookie, Ino
from tests.damage import flipped
from tests.meta.conftest import MakeDatabase
from tests.meta.random_tree import Tree
from tests.meta.recorders import SessionRecorder, recorded
from tests.rows import contents

Tables = dict[str, list[Any]]

SIZE, MAPPED, CTIME, MTIME_DELTA, ACCESS_TIME = 5, 6, 7, 8, 9


class History:
    """A database with one file, which records its changes."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.recorder: SessionRecorder = recorded(db)
        self.ino = self.make(b"f")

    def make(self, name: bytes) -> Ino:
        """Create a file with a name."""
        self.db.begin()
        made = inodes.create(self.db, 0o100644, 1, 2, ROOT_INO, 5)
        dentries.add(self.db, ROOT_INO, name, made.ino)
        self.db.commit()
        return made.ino

    def changeset(self, change: Callable[[Database], object]) -> bytes:
        """Return the changeset of one change."""
        self.db.begin()
        change(self.db)
        self.db.commit()
        return self.recorder.changesets[-1]


@pytest.fixture
def history(make_database: MakeDatabase) -> History:
    """Return a database with one file, which records its changes."""
    return History(make_database())


def rows_of_inodes(db: Database) -> dict[Ino, Any]:
    """Return the rows of all inodes by inode number."""
    return {row[0]: row for row in db.all("SELECT * FROM inodes")}


def expected(before: Tables, after: Tables) -> ChangedRows:
    """Return the changed rows between two states of the tables."""
    found = ChangedRows(set(), set(), set())
    old, new = ({row[0]: row for row in tables["inodes"]} for tables in (before, after))
    found.content.update(old.keys() ^ new.keys())
    for ino in old.keys() & new.keys():
        columns = {column for column in range(14) if old[ino][column] != new[ino][column]}
        mtimes = {row[CTIME] + row[MTIME_DELTA] for row in (old[ino], new[ino])}
        if SIZE in columns or len(mtimes) > 1:
            found.content.add(ino)
        elif columns - {ACCESS_TIME, MAPPED}:
            found.other.add(ino)
    for table in ("hard_links", "symlinks", "xattrs"):
        found.other.update(row[0] for row in set(before[table]) ^ set(after[table]))
    next_block = before["counters"][0][2]
    found.content.update(
        row[0] for row in set(after["block_map"]) - set(before["block_map"]) if row[2] >= next_block
    )
    entries = {(row[0], row[1]): row for row in after["dentries"]}
    for parent, cookie, name, ino in before["dentries"]:
        present = entries.get((parent, cookie))
        if (parent, cookie, name, ino) not in after["dentries"]:
            found.other.add(ino)
        if present is None or (present[3] != ino and present[2] != name):
            found.names.add(LostName(parent, name, Cookie(0), ino))
        elif present[3] != ino:
            found.names.add(LostName(parent, b"", cookie, ino))
    found.other.update(row[3] for row in set(after["dentries"]) - set(before["dentries"]))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_changed_rows_are_the_rows_that_differ_between_two_states(
    make_database: MakeDatabase, seed: int
) -> None:
    db = make_database()
    recorder, tree = recorded(db), Tree(db, seed)
    for _ in range(6):
        before = contents(db.connection)
        for _ in range(20):
            tree.step()
        db.commit()
        after = contents(db.connection)
        found = row_history.changed_rows(recorder.changesets[-1], is_complete=True)
        wanted = expected(before, after)
        assert found.content == wanted.content
        assert found.other - found.content == wanted.other - wanted.content
        assert found.names == wanted.names


@pytest.mark.parametrize("seed", range(4))
def test_inode_history_contains_the_row_before_and_after_each_change(
    make_database: MakeDatabase, seed: int
) -> None:
    db = make_database()
    recorder, tree = recorded(db), Tree(db, seed)
    for _ in range(6):
        old = rows_of_inodes(db)
        for _ in range(20):
            tree.step()
        db.commit()
        new = rows_of_inodes(db)
        found = row_history.changes_of(recorder.changesets[-1], [*old, *new], is_complete=True)
        for ino, change in found.items():
            if ino in old and change.before is not None:
                row = dict(zip(INODE_COLUMNS, old[ino], strict=True))
                assert row | change.before == row
            if ino in new and change.after is not None:
                row = dict(zip(INODE_COLUMNS, new[ino], strict=True))
                assert row | change.after == row
            assert (change.before is None) == (ino not in old)
            assert (change.after is None) == (ino not in new)
        changed = {ino for ino in old.keys() | new.keys() if old.get(ino) != new.get(ino)}
        assert changed <= found.keys()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE dentries SET ino = -1",
        "INSERT INTO xattrs VALUES (-1, x'61', x'')",
    ],
)
def test_negative_number_of_an_inode_is_damage(history: History, statement: str) -> None:
    """No index and no notification of the kernel can contain such a number."""
    changeset = history.changeset(lambda db: db.run(statement))

    with pytest.raises(FormatError, match="negative"):
        row_history.changed_rows(changeset, is_complete=True)


def test_inode_columns_equal_the_columns_of_the_schema(history: History) -> None:
    columns = history.db.all("SELECT name FROM pragma_table_info('inodes')")
    assert [row[0] for row in columns] == list(INODE_COLUMNS)


def test_change_of_only_the_atime_is_ignored(history: History) -> None:
    query = "UPDATE inodes SET atime_delta_ns = 7 WHERE ino = ?"
    changeset = history.changeset(lambda db: db.inodes.run(query, (history.ino,)))
    assert row_history.changed_rows(changeset, is_complete=True) == ChangedRows(set(), set(), set())


def test_deduplication_of_a_block_does_not_count_as_a_change(history: History) -> None:
    """Deduplication replaces a block of a file with an existing equal block."""
    ino = history.ino

    def write(db: Database) -> None:
        block_map.set(db, ino, BlockIndex(0), db.counters.take_block())

    for _ in range(2):
        changeset = history.changeset(write)
        assert row_history.changed_rows(changeset, is_complete=True).content == {ino}
        assert row_history.changes_of(changeset, [ino], is_complete=True)[ino].is_content_changed
    older = BlockId(history.db.counters.next_block - 2)
    changeset = history.changeset(lambda db: block_map.set(db, ino, BlockIndex(0), older))
    assert row_history.changed_rows(changeset, is_complete=True).content == set()
    assert row_history.changes_of(changeset, [ino], is_complete=True) == {}
    assert row_history.changed_rows(changeset, is_complete=False).content == {ino}
    assert row_history.changes_of(changeset, [ino], is_complete=False)[ino].blocks == 1


def test_new_mtime_counts_as_new_content_but_a_new_ctime_does_not(history: History) -> None:
    ino = history.ino

    def content_after(**times: int) -> set[Ino]:
        changeset = history.changeset(lambda db: inodes.touch(db, ino, **times))
        found = row_history.changed_rows(changeset, is_complete=True)
        change = row_history.changes_of(changeset, [ino], is_complete=True)[ino]
        assert change.is_content_changed == (ino in found.content)
        assert ino in found.content | found.other
        return found.content

    assert content_after(ctime_ns=10**18) == set()
    assert content_after(mtime_ns=10**18) == {ino}
    assert content_after(ctime_ns=10**18 + 5, mtime_ns=10**18 + 5) == {ino}


def test_dentry_with_a_new_inode_is_recorded_by_its_cookie(history: History) -> None:
    other = history.make(b"other")
    cookie = history.db.all("SELECT cookie FROM dentries WHERE name = ?", (b"f",))[0][0]
    changeset = history.changeset(
        lambda db: db.run("UPDATE dentries SET ino = ? WHERE name = ?", (other, b"f"))
    )

    assert row_history.changed_rows(changeset, is_complete=True).names == {
        LostName(ROOT_INO, b"", cookie, history.ino)
    }
    found = row_history.changes_of(changeset, [history.ino, other], is_complete=True)
    assert found[history.ino].lost == [LostName(ROOT_INO, b"", cookie, history.ino)]
    assert found[other].replaced == [(ROOT_INO, cookie)]


def test_changes_of_a_file_include_blocks_and_names_and_xattrs(history: History) -> None:
    ino = history.ino

    def change(db: Database) -> None:
        block_map.set(db, ino, BlockIndex(0), db.counters.take_block())
        xattrs.set(db, ino, b"user.x", b"1")
        dentries.add(db, ROOT_INO, b"g", ino)
        dentries.remove(db, ROOT_INO, b"f")

    found = row_history.changes_of(history.changeset(change), [ino], is_complete=True)
    assert found[ino].blocks == 1
    assert found[ino].xattrs == {b"user.x"}
    assert found[ino].gained == [(ROOT_INO, b"g")]
    assert found[ino].lost == [LostName(ROOT_INO, b"f", Cookie(0), ino)]
    assert found[ino].is_content_changed


def test_changes_of_one_txg_are_combined_in_order() -> None:
    earlier = InodeChange(before=None, after={"ino": 5, "size_bytes": 1, "mode": 2}, blocks=1)
    later = InodeChange(before={"ino": 5, "size_bytes": 1}, after={"ino": 5, "size_bytes": 9})
    later = later.with_earlier(earlier)
    assert (later.before, later.blocks) == (None, 1)
    assert later.after == {"ino": 5, "size_bytes": 9, "mode": 2}

    earlier = InodeChange(before={"mode": 1}, after={"mode": 2})
    later = InodeChange(before={"mode": 2, "uid": 7}, after=None)
    later = later.with_earlier(earlier)
    assert (later.before, later.after) == ({"mode": 1, "uid": 7}, None)


def test_damaged_changeset_is_refused_or_contains_values_of_the_declared_types(
    history: History,
) -> None:
    changeset = history.changeset(lambda db: dentries.remove(db, ROOT_INO, b"f"))
    refused = 0
    for at in range(len(changeset)):
        for bit in range(8):
            try:
                found = row_history.changed_rows(flipped(changeset, at, bit), is_complete=True)
            except FormatError:
                refused += 1
                continue
            assert {type(ino) for ino in found.content | found.other} <= {int}
            for lost in found.names:
                assert [type(value) for value in lost] == [int, bytes, int, int]
    assert refused
