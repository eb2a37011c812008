"""Comparison of two databases that may belong to different histories."""

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
    """Return two equal databases."""
    found = database(tmp_path / "earlier"), database(tmp_path / "later")
    for one in found:
        one.inodes.run("UPDATE inodes SET ctime_ns = 0")
        file_in(one, pack(one, 1), CONTENT)
    return found


@pytest.mark.parametrize("change", [_add_pack, _add_file, _add_inode, _add_nothing])
def test_earlier_state_of_a_history_does_not_contradict_a_later_state(
    tmp_path: Path, change: Callable[[Database], None]
) -> None:
    earlier, later = _two(tmp_path)
    change(later)
    later.commit()
    later.close()
    assert not contradict(earlier, later.path)


@pytest.mark.parametrize("change", [_add_pack, _add_file, _add_inode])
def test_number_that_was_assigned_in_two_ways_contradicts(
    tmp_path: Path, change: Callable[[Database], None]
) -> None:
    """Each history went on with the same number."""
    earlier, later = _two(tmp_path)
    change(earlier)
    pack(later, 9)
    file_in(later, pack(later, 10), CONTENT)
    later.commit()
    later.close()
    assert contradict(earlier, later.path)


@pytest.mark.parametrize("change", [_add_file, _add_inode])
def test_number_that_the_later_state_has_not_assigned_contradicts(
    tmp_path: Path, change: Callable[[Database], None]
) -> None:
    earlier, later = _two(tmp_path)
    change(earlier)
    later.commit()
    later.close()
    assert contradict(earlier, later.path)
