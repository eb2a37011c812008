"""Comparison of two databases: does one of them continue the history of the other?"""

from collections.abc import Callable
from pathlib import Path

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline.histories import contradict
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO
from tests.meta.offline.files_in_packs import database, file_in, pack

CONTENT = b"h" * 32


def _add_pack(db: Database) -> None:
    pack(db, 8)


def _add_file(db: Database) -> None:
    file_in(db, pack(db, 7), b"other".ljust(32))


def _add_inode(db: Database) -> None:
    inodes.create(db, 0o100644, 0, 0, ROOT_INO, 5)


def _add_nothing(db: Database) -> None:
    assert db.counters.next_ino


def _two(tmp_path: Path) -> tuple[Database, Database]:
    """Return two identical databases."""
    found = database(tmp_path / "earlier"), database(tmp_path / "later")
    for one in found:
        one.inodes.run("UPDATE inodes SET ctime_ns = 0")
        file_in(one, pack(one, 1), CONTENT)
    return found


def _remove(db: Database) -> None:
    db.inodes.run("DELETE FROM inodes WHERE ino = (SELECT max(ino) FROM inodes)")


def _rename(db: Database) -> None:
    """Change the ctime of the root directory, as a rename changes the ctime of an inode."""
    db.inodes.run(f"UPDATE inodes SET ctime_ns = 1, btime_delta_ns = -1 WHERE ino = {ROOT_INO}")


@pytest.mark.parametrize(
    "change", [_add_pack, _add_file, _add_inode, _add_nothing, _remove, _rename]
)
def test_earlier_and_later_state_of_one_history_do_not_conflict(
    tmp_path: Path, change: Callable[[Database], None]
) -> None:
    earlier, later = _two(tmp_path)
    change(later)
    later.commit()
    later.close()
    assert not contradict(earlier, later.path)


def _add_other_things(db: Database) -> None:
    pack(db, 9)
    file_in(db, pack(db, 10), CONTENT)


@pytest.mark.parametrize(
    ("change", "later_change"),
    [
        # Both databases use the same next number, but for different objects.
        (_add_pack, _add_other_things),
        (_add_file, _add_other_things),
        (_add_inode, _add_other_things),
        # Only the earlier database uses the number.
        (_add_file, _add_nothing),
        (_add_inode, _add_nothing),
        # A removal or rename uses no new number, so only a comparison of inodes detects it.
        (_remove, _add_inode),
        (_rename, _add_inode),
    ],
)
def test_databases_conflict_if_the_later_database_lacks_a_change_of_the_earlier_one(
    tmp_path: Path, change: Callable[[Database], None], later_change: Callable[[Database], None]
) -> None:
    earlier, later = _two(tmp_path)
    change(earlier)
    later_change(later)
    later.commit()
    later.close()
    assert contradict(earlier, later.path)
