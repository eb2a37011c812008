"""The changes of a commit group: the hook and the session extension record equal changes."""

import random
from collections.abc import Callable

import apsw
import pytest

from s3fs_meta.errors import DatabaseError
from s3fs_meta.meta import group_changes
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.group_listeners import LossStep
from s3fs_meta.meta.db.schema import REPLICATED_TABLES
from s3fs_meta.meta.group_changes import NOTED_ROWS_MAX, GroupChanges
from s3fs_meta.meta.tables.pending import ChangeRecorder
from tests.meta.conftest import MakeDatabase, create_file
from tests.meta.random_tree import Tree
from tests.meta.recorders import apply_in_transaction
from tests.rows import contents

ALWAYS_HOOK = 1 << 30
NEVER_HOOK = -1


class Recording:
    """A recorder that keeps the changeset of each commit group."""

    def __init__(self, db: Database, noted_rows_max: int) -> None:
        self.changes = GroupChanges(db, db.path, noted_rows_max=noted_rows_max)
        self.changesets: list[bytes] = []
        self.group_opened = self.changes.begin
        db.recorder = self
        db.listeners.when_lost(LossStep.RELOAD, self.changes.end)

    def group_committing(self) -> None:
        """Store the changeset of the commit group."""
        self.changesets.append(self.changes.changeset())
        self.changes.end()
        self.changes.expect_few_rows()


def first_small_group(db: Database) -> None:
    """Commit a group without changes, so that the hook records the next group if it may."""
    db.begin_local()
    db.commit()


def listed(changeset: bytes) -> list[str]:
    """Return the changes of a changeset as sorted lines."""
    return sorted(
        repr((one.name, one.op, one.old, one.new)) for one in apsw.Changeset.iter(changeset)
    )


def random_groups(db: Database, seed: int) -> None:
    """Run random operations in commit groups of different sizes, a few of them undone."""
    tree = Tree(db, seed)
    sizes = random.Random(seed)
    for number in range(40):
        names = list(tree.names)
        for _ in range(sizes.choice([1, 2, 5, 40])):
            tree.step()
        if number % 10 == 9:
            db.undo()
            tree.names = names
        db.commit()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_hook_and_session_record_equal_changes(make_database: MakeDatabase, seed: int) -> None:
    found: list[list[list[str]]] = []
    for noted_rows_max in (ALWAYS_HOOK, NEVER_HOOK, NOTED_ROWS_MAX):
        db = make_database(f"{noted_rows_max}.db")
        first_small_group(db)
        recording = Recording(db, noted_rows_max)
        random_groups(db, seed)
        found.append([listed(changeset) for changeset in recording.changesets])
    assert found[0] == found[1]
    assert found[2] == found[1]
    assert sum(len(changes) for changes in found[0]) > 500


def insert_values(connection: apsw.Connection) -> None:
    """Insert values of every type and of lengths around each step of SQLite's varint."""
    for number, length in enumerate((0, 1, 127, 128, 16383, 16384, 70_000)):
        connection.execute(
            "INSERT INTO xattrs VALUES (7, ?, zeroblob(?))", (b"%d" % number, length)
        )
    connection.execute("INSERT INTO properties VALUES ('nämé', 1.5)")
    connection.execute("INSERT INTO properties VALUES ('', '')")
    connection.execute("INSERT INTO symlinks VALUES (-9223372036854775808, 'text')")


def change_keys(connection: apsw.Connection) -> None:
    """Change primary keys, onto a new key and onto a key that was deleted."""
    connection.execute("UPDATE properties SET name = 'moved' WHERE name = 'uuid'")
    connection.execute("DELETE FROM properties WHERE name = 'block_bytes'")
    connection.execute("UPDATE properties SET name = 'block_bytes' WHERE name = 'cookie_key'")
    connection.execute("UPDATE inodes SET ino = 99 WHERE ino = 1")


def change_back(connection: apsw.Connection) -> None:
    """Change, delete and replace rows so that some have their former values at the end."""
    connection.execute("UPDATE inodes SET mode = mode + 1")
    connection.execute("UPDATE inodes SET mode = mode - 1")
    connection.execute("INSERT INTO symlinks VALUES (5, x'00')")
    connection.execute("DELETE FROM symlinks")
    connection.execute("REPLACE INTO properties VALUES ('uuid', x'0102')")
    connection.execute("DELETE FROM counters")
    connection.execute("INSERT INTO counters VALUES (1, 2, 1, 1, 1, 0, 0, 0)")


def fail_halfway(connection: apsw.Connection) -> None:
    """Run a statement that fails after it has changed some rows, which SQLite then undoes."""
    for ino in (2, 3, 4):
        connection.execute("INSERT INTO symlinks VALUES (?, x'61')", (ino,))
    with pytest.raises(apsw.ConstraintError):
        connection.execute("UPDATE symlinks SET ino = ino + 2, target = x'62' WHERE ino < 4")
    with pytest.raises(apsw.ConstraintError):
        connection.execute(
            "INSERT INTO symlinks SELECT 7 - value, x'63' FROM json_each('[1, 2, 3]')"
        )


@pytest.mark.parametrize("change", [insert_values, change_keys, change_back, fail_halfway])
def test_hook_records_unusual_changes_like_the_session(
    make_database: MakeDatabase, change: Callable[[apsw.Connection], None]
) -> None:
    found: list[list[str]] = []
    for noted_rows_max in (ALWAYS_HOOK, NEVER_HOOK):
        db = make_database(f"{noted_rows_max}.db")
        connection = db.connection
        changes = GroupChanges(db, db.path, noted_rows_max=noted_rows_max)
        changes.expect_few_rows()
        former = contents(connection)
        connection.execute("BEGIN")
        changes.begin()
        change(connection)
        changeset = changes.changeset()
        changes.end()
        after = contents(connection)
        connection.execute("ROLLBACK")
        assert contents(connection) == former
        apply_in_transaction(connection, changeset)
        assert contents(connection) == after
        found.append(listed(changeset))
    assert found[0] == found[1]


def test_rows_changed_during_a_pause_are_recorded_only_if_they_change_again(
    make_database: MakeDatabase,
) -> None:
    for noted_rows_max in (ALWAYS_HOOK, NEVER_HOOK):
        db = make_database(f"{noted_rows_max}.db")
        recording = Recording(db, noted_rows_max)
        first_small_group(db)
        db.begin()
        recording.changes.pause(True)
        for ino in (50, 51):
            db.run("INSERT INTO symlinks VALUES (?, x'61')", (ino,))
        recording.changes.pause(False)
        db.run("UPDATE symlinks SET target = x'62' WHERE ino = 51")
        db.commit()
        expected = ("symlinks", "UPDATE", (51, b"a"), (apsw.no_change, b"b"))
        assert listed(recording.changesets[-1]) == [repr(expected)]


def test_changes_between_groups_are_not_recorded(make_database: MakeDatabase) -> None:
    """A repair may change rows outside of a commit group; the next group must not record them."""
    db = make_database()
    recording = Recording(db, ALWAYS_HOOK)
    first_small_group(db)
    db.connection.execute("INSERT INTO symlinks VALUES (50, x'61')")
    first_small_group(db)
    assert recording.changesets == [b"", b""]


def damage_a_property(db: Database) -> None:
    """Insert a row whose text is not valid UTF-8."""
    db.connection.execute("INSERT INTO properties VALUES (CAST(x'ff' AS TEXT), x'00')")


def test_changes_of_damaged_rows_are_recorded(make_database: MakeDatabase) -> None:
    """The hook cannot read text that is not valid UTF-8, so its table is compared instead."""
    changesets: list[list[bytes]] = []
    for noted_rows_max in (ALWAYS_HOOK, NEVER_HOOK):
        db = make_database(f"{noted_rows_max}.db")
        damage_a_property(db)
        recording = Recording(db, noted_rows_max)
        first_small_group(db)
        db.begin()
        db.run("INSERT INTO symlinks VALUES (50, x'61')")
        db.run("INSERT INTO properties VALUES ('before', x'01')")
        db.run("UPDATE properties SET value = x'02' WHERE value = x'00'")
        db.run("DELETE FROM properties WHERE name = 'block_bytes'")
        db.commit()
        db.begin()
        # With the hook, a pause and a damaged row in one group would be an error.
        recording.changes.pause(True)
        recording.changes.pause(False)
        db.run("DELETE FROM properties WHERE value = x'02'")
        db.commit()
        assert db.wal is not None
        assert db.wal.try_checkpoint(db.connection)
        changesets.append(recording.changesets)
        other = make_database(f"other{noted_rows_max}.db")
        damage_a_property(other)
        for changeset in recording.changesets:
            apply_in_transaction(other.connection, changeset)
        assert contents(other.connection, ["symlinks", "properties"]) == contents(
            db.connection, ["symlinks", "properties"]
        )
    hooked, by_session = changesets
    assert [len(one) for one in hooked] == [len(one) for one in by_session]
    assert len(hooked[1]) > 0
    assert len(hooked[2]) > 0


def test_changes_after_a_failed_comparison_are_recorded(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit group stays open, and its next commit records all its changes."""
    db = make_database()
    damage_a_property(db)
    recording = Recording(db, ALWAYS_HOOK)
    first_small_group(db)
    db.begin()
    db.run("DELETE FROM properties WHERE value = x'00'")
    with monkeypatch.context() as patched:
        patched.setattr(group_changes, "read_only_uri", lambda path: f"file:{path}/none?mode=ro")
        with pytest.raises(DatabaseError, match="cannot record the changes"):
            recording.changes.changeset()
    db.run("INSERT INTO symlinks VALUES (50, x'61')")
    db.commit()

    other = make_database("other.db")
    damage_a_property(other)
    apply_in_transaction(other.connection, recording.changesets[-1])
    assert contents(other.connection, ["symlinks", "properties"]) == contents(
        db.connection, ["symlinks", "properties"]
    )


def test_damaged_row_changed_beside_a_copied_tree_is_reported(make_database: MakeDatabase) -> None:
    """The rows of the copied tree must not be recorded twice, so no table can be compared."""
    db = make_database()
    damage_a_property(db)
    recording = Recording(db, ALWAYS_HOOK)
    first_small_group(db)
    db.begin()
    recording.changes.pause(True)
    recording.changes.pause(False)
    db.run("DELETE FROM properties WHERE value = x'00'")
    with pytest.raises(DatabaseError, match="cannot record the changes of the last operations"):
        db.commit()


def test_damaged_row_changed_by_a_lost_group_does_not_matter_later(
    make_database: MakeDatabase,
) -> None:
    db = make_database()
    damage_a_property(db)
    recording = Recording(db, ALWAYS_HOOK)
    first_small_group(db)
    db.begin()
    db.run("DELETE FROM properties WHERE value = x'00'")
    db.undo()
    recording.changes.expect_few_rows()
    db.begin()
    recording.changes.pause(True)
    recording.changes.pause(False)
    db.run("INSERT INTO symlinks VALUES (50, x'61')")
    db.commit()
    assert listed(recording.changesets[-1])


def test_temporary_table_with_the_name_of_a_replicated_table_is_not_recorded(
    make_database: MakeDatabase,
) -> None:
    db = make_database()
    recording = Recording(db, ALWAYS_HOOK)
    first_small_group(db)
    db.connection.execute("CREATE TEMP TABLE xattrs (ino, name, value)")
    db.connection.execute("INSERT INTO temp.xattrs VALUES (7, x'61', x'62')")
    db.begin()
    db.run("DELETE FROM temp.xattrs")
    db.commit()
    assert recording.changesets == [b"", b""]


def test_changes_are_recorded_after_the_loss_of_a_small_or_large_commit_group(
    make_database: MakeDatabase,
) -> None:
    """SQLite crashes if a session and a hook exist at the same time."""
    db = make_database()
    recorder = ChangeRecorder(db, lambda: 5)
    numbers = iter(range(100_000))
    for size in (1, 100, 1, 1, 100, 100, 1):
        for _ in range(size):
            create_file(db, b"lost%d" % next(numbers))
        db.undo()
        recorder.expect_few_rows()
        for _ in range(size):
            create_file(db, b"kept%d" % next(numbers))
        db.commit()
        recorder.expect_few_rows()
    records = db.all("SELECT changeset FROM pending ORDER BY seq")
    names = [
        str(change.new[2])
        for (record,) in records
        for change in apsw.Changeset.iter(bytes(record))
        if change.name == "dentries" and change.new is not None
    ]
    assert len(names) == 304
    assert all(name.startswith("b'kept") for name in names)
    assert recorder.last_seq == 7


def test_every_replicated_table_has_its_key_in_the_first_columns(db: Database) -> None:
    """The hook takes the first columns of a row as its key."""
    for table in REPLICATED_TABLES:
        keys = [row[0] for row in db.all("SELECT pk FROM pragma_table_info(?)", (table,))]
        count = sum(key > 0 for key in keys)
        assert keys == [*range(1, count + 1), *[0] * (len(keys) - count)], table
        assert count
