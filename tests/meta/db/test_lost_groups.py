"""Lost commit groups: changes that are undone before they are committed."""

from functools import partial

import pytest

from s3fs_meta.errors import DatabaseError, DatabaseFullError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.group_listeners import LossStep
from s3fs_meta.meta.db.pragmas import JOURNAL_MODES
from s3fs_meta.meta.tables import block_map, blocks, dentries
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex
from tests.faults import raising
from tests.meta.conftest import MakeDatabase, create_file


def test_error_in_a_listener_for_lost_groups_does_not_stop_other_listeners(db: Database) -> None:
    """If a listener fails, the other listeners run, and the database refuses further changes."""
    called: list[LossStep] = []
    db.listeners.when_lost(LossStep.RELOAD, raising(DatabaseError("the disk has failed")))
    for step in LossStep:
        db.listeners.when_lost(step, partial(called.append, step))
    db.begin()
    db.rollback()

    assert called == list(LossStep)
    with pytest.raises(DatabaseError):
        db.begin()


def test_listeners_for_lost_groups_are_called_in_the_order_of_loss_steps(
    make_database: MakeDatabase,
) -> None:
    db = make_database()
    called: list[LossStep] = []
    for step in (LossStep.REPORT, LossStep.REFUSE, LossStep.RELOAD, LossStep.REFUSE):
        db.listeners.when_lost(step, partial(called.append, step))
    create_file(db, b"lost")

    db.rollback()

    assert called == [LossStep.REFUSE, LossStep.REFUSE, LossStep.RELOAD, LossStep.REPORT]


def test_undoing_a_group_keeps_the_number_of_the_open_txg(make_database: MakeDatabase) -> None:
    """A pack that dies after an undo must not be recorded as dead in an earlier txg."""
    db = make_database()
    db.counters.begin_txg(9)
    create_file(db, b"undone")
    inodes_before = db.counters.inodes - 1

    db.undo()

    assert (db.counters.txg, db.counters.inodes) == (9, inodes_before)


def test_undoing_a_group_blocks_later_changes_only_if_the_undo_fails(
    make_database: MakeDatabase, journal_mode: str
) -> None:
    db = make_database(journal_mode=journal_mode)
    called: list[LossStep] = []
    for step in LossStep:
        db.listeners.when_lost(step, partial(called.append, step))
    create_file(db, b"undone")

    db.undo()

    if journal_mode == "off":
        assert called == list(LossStep)
        return
    assert called == [LossStep.RELOAD, LossStep.REPORT]
    assert dentries.find(db, ROOT_INO, b"undone") is None
    db.begin()


def fill_disk(db: Database) -> None:
    """Limit the database to its current size, which simulates a full disk."""
    pages = db.one("PRAGMA page_count")
    assert pages is not None
    db.connection.pragma("max_page_count", pages[0])


def create_until_full(db: Database) -> None:
    """Create files with long names until SQLite reports that the disk is full."""
    for number in range(10_000):
        create_file(db, b"%0200d" % number)


@pytest.mark.parametrize("mode", [mode for mode in JOURNAL_MODES if mode != "off"])
def test_full_disk_undoes_only_the_open_commit_group(
    make_database: MakeDatabase, mode: str
) -> None:
    """A full disk rolls back the open commit group once; earlier groups are not affected."""
    db = make_database(journal_mode=mode, cache_size=10)
    create_file(db, b"kept")
    db.commit()
    before = db.counters.values()
    lost: list[int] = []
    db.listeners.when_lost(LossStep.RELOAD, lambda: lost.append(1))
    fill_disk(db)
    with pytest.raises(DatabaseFullError):
        create_until_full(db)
    assert (lost, db.in_group) == ([1], False)
    assert db.counters.values() == before
    assert db.all("SELECT name FROM dentries") == [(b"kept",)]
    db.connection.pragma("max_page_count", 1 << 30)
    create_file(db, b"after")
    db.commit()
    assert db.one("PRAGMA integrity_check") == ("ok",)


def test_full_disk_without_a_journal_refuses_all_further_changes(
    make_database: MakeDatabase,
) -> None:
    """With journal_mode=off, an operation may remain in part, so later changes are refused."""
    db = make_database(journal_mode="off")
    create_file(db, b"kept")
    db.commit()
    lost: list[int] = []
    db.listeners.when_lost(LossStep.RELOAD, lambda: lost.append(1))
    fill_disk(db)
    with pytest.raises(DatabaseFullError):
        create_until_full(db)
    assert (lost, db.in_group) == ([1], False)
    assert dentries.find(db, ROOT_INO, b"kept") is not None
    with pytest.raises(DatabaseError, match="journal_mode=off"):
        db.begin()


def test_failed_statement_does_not_undo_the_commit_group(make_database: MakeDatabase) -> None:
    """SQLite undoes only the failed statement; the caller may roll back the commit group."""
    db = make_database()
    create_file(db, b"a")
    with pytest.raises(DatabaseError):
        db.inodes.run("INSERT INTO inodes (ino) VALUES (?)", (7,))
    assert db.in_group
    db.commit()
    assert dentries.find(db, ROOT_INO, b"a") is not None


def test_failed_statement_without_a_journal_refuses_all_further_changes(
    make_database: MakeDatabase,
) -> None:
    """With journal_mode=off, a failed statement may remain in part; a failed query does not."""
    db = make_database(journal_mode="off")
    create_file(db, b"a")
    with pytest.raises(DatabaseError, match="no such table"):
        db.all("SELECT * FROM no_such")
    was_open = db.in_group
    with pytest.raises(DatabaseError):
        db.inodes.run("INSERT INTO inodes (ino) VALUES (?)", (7,))
    assert (was_open, db.in_group) == (True, False)
    with pytest.raises(DatabaseError, match="journal_mode=off"):
        db.begin()


def test_failed_commit_undoes_the_commit_group_even_if_its_transaction_stays_open(
    make_database: MakeDatabase,
) -> None:
    """COMMIT fails without a rollback by SQLite if a deferred constraint is violated."""
    db = make_database()
    db.connection.execute(
        "PRAGMA foreign_keys=ON; CREATE TABLE temp.parents (id INTEGER PRIMARY KEY);"
        " CREATE TABLE temp.children (id REFERENCES parents DEFERRABLE INITIALLY DEFERRED)"
    )
    create_file(db, b"lost")
    db.run("INSERT INTO temp.children VALUES (1)")
    with pytest.raises(DatabaseError, match="FOREIGN KEY"):
        db.commit()

    assert (db.in_group, db.group_operations) == (False, 0)
    assert not db.connection.in_transaction
    assert dentries.find(db, ROOT_INO, b"lost") is None
    create_file(db, b"after")
    db.commit()


def test_cached_query_results_are_discarded_with_a_lost_commit_group(
    make_database: MakeDatabase,
) -> None:
    db = make_database()
    ino = create_file(db, b"f")
    db.commit()
    db.begin()
    block_map.set(db, ino, BlockIndex(0), BlockId(7))
    blocks.create_dirty(db, BlockId(7), ino, BlockIndex(0), 5, hole_bytes=0)
    assert block_map.locate(db, ino, BlockIndex(0)) is not None
    db.undo()

    assert block_map.locate(db, ino, BlockIndex(0)) is None


def test_database_without_readable_counters_refuses_changes_after_a_rollback(
    make_database: MakeDatabase,
) -> None:
    """If counters cannot be read back after a rollback, new rows would get wrong numbers."""
    db = make_database()
    called: list[LossStep] = []
    db.listeners.when_lost(LossStep.REFUSE, partial(called.append, LossStep.REFUSE))
    db.begin()
    db.run("DELETE FROM counters")
    db.commit()
    create_file(db, b"lost")

    db.undo()

    assert called == [LossStep.REFUSE]
    with pytest.raises(DatabaseError):
        db.begin()
