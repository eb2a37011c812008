"""Recording: a session records every change of the replicated tables.

While random operations run, a recorder has an ``apsw.Session`` on exactly the replicated tables.
When its changesets are applied to an earlier copy of the database, all tables must match again.
The tests run in every journal mode.
"""

from pathlib import Path

import apsw
import pytest

from s3fs_meta.meta.db.schema import LOCAL_TABLES, LOCATION_TABLES, REPLICATED_TABLES
from tests.meta.conftest import MakeDatabase
from tests.meta.random_tree import Tree
from tests.meta.recorders import recorded
from tests.rows import contents


def refuse_conflict(reason: int, change: object) -> int:
    """Fail the test, because no recorded changeset may cause a conflict."""
    raise AssertionError(f"unexpected conflict {reason}: {change}")


@pytest.mark.parametrize("seed", [1, 2])
def test_applied_changesets_reproduce_the_recorded_tables(
    make_database: MakeDatabase, journal_mode: str, tmp_path: Path, seed: int
) -> None:
    """Changesets of all groups reproduce the tables in a copy made before the first group."""
    db = make_database(journal_mode=journal_mode)
    tree = Tree(db, seed)
    for _ in range(30):
        tree.step()
    db.commit()
    snapshot = db.open_snapshot()
    snapshot.copy_to(tmp_path / "copy.db")
    snapshot.close()
    recorder = recorded(db)
    for _ in range(8):
        for _ in range(20):
            tree.step()
        db.commit()
    copy = apsw.Connection(str(tmp_path / "copy.db"))
    assert contents(copy) != contents(db.connection)
    for changeset in recorder.changesets:
        apsw.Changeset.apply(changeset, copy, conflict=refuse_conflict)
    assert contents(copy) == contents(db.connection)
    copy.close()
    assert len(recorder.changesets) == 8


def test_locations_and_local_rows_are_not_recorded(make_database: MakeDatabase) -> None:
    """Changelogs contain locations in separate fields, and local rows are never shipped."""
    db = make_database()
    recorder = recorded(db)
    db.begin_local()
    db.run("INSERT INTO blocks VALUES (1, 0, 5, NULL, NULL, NULL, NULL)")
    db.run("INSERT INTO packs VALUES (1, 'k', 1, 5, 0, NULL)")
    db.run("INSERT INTO cached_blocks VALUES (1, 1, 1, 1, 0)")
    db.run("INSERT INTO local_state VALUES ('a', 'b')")
    db.commit()
    assert recorder.changesets == [b""]
    assert not set(REPLICATED_TABLES) & {*LOCATION_TABLES, *LOCAL_TABLES}


@pytest.mark.parametrize("mode", ["wal", "delete", "memory"])
def test_rolled_back_commit_group_is_not_recorded(make_database: MakeDatabase, mode: str) -> None:
    db = make_database(journal_mode=mode)
    recorder = recorded(db)
    tree = Tree(db, 3)
    for _ in range(10):
        tree.step()
    db.rollback()
    tree.names.clear()
    db.begin()
    tree.create()
    db.commit()
    assert len(recorder.changesets) == 1
    changed = {change.name for change in apsw.Changeset.iter(recorder.changesets[0])}
    assert changed >= {"inodes", "dentries", "counters"}
