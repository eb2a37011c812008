"""Tests of the list of quarantined states, and of the unshipped changes in each state."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from s3fs_meta.export import quarantine_list
from s3fs_meta.export.quarantine_list import Kept, Names
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino

DIRECTORY, REGULAR = 0o40755, 0o100644


def _create(path: Path) -> Database:
    facts = {"uuid": b"u", "block_bytes": b"65536", "cookie_key": bytes(16)}
    return Database.create(path, Pragmas(journal_mode="delete"), facts, uid=0, gid=0)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    """Return the database of an empty filesystem, with an open commit group."""
    with closing(_create(tmp_path / "meta.db")) as made:
        made.begin()
        yield made


def _make(db: Database, parent: Ino, name: bytes, mode: int = REGULAR) -> Ino:
    ino = inodes.create(db, mode, 0, 0, parent, 0, nlink=2 if mode == DIRECTORY else 1).ino
    dentries.add(db, parent, name, ino)
    return ino


def test_quarantined_directories_are_listed_oldest_first(tmp_path: Path) -> None:
    """The name of a quarantined directory contains the time of its quarantine."""
    for name in ("kept-100", "kept-20", "kept-3", "blocks"):
        (tmp_path / name).mkdir()

    assert [kept.set_aside_ns for kept in quarantine_list.find_all(tmp_path)] == [3, 20, 100]
    assert quarantine_list.find_all(tmp_path / "nowhere") == []


def test_other_files_are_not_listed_as_quarantined_states(tmp_path: Path) -> None:
    """A user may have put a file beside the quarantined states, or moved a state elsewhere."""
    (tmp_path / "moved").mkdir()
    (tmp_path / "kept-1").symlink_to(tmp_path / "moved")
    (tmp_path / "kept-2").symlink_to(tmp_path / "missing")
    (tmp_path / "kept-notes").write_bytes(b"a note of the user")

    assert quarantine_list.find_all(tmp_path) == [Kept(tmp_path / "kept-1", 1)]


@pytest.mark.parametrize("name", ["kept-before-upgrade", "kept-\u00b2", "kept-" + 30 * "9"])
def test_quarantined_directory_without_a_time_in_its_name_has_its_own_time(
    tmp_path: Path, name: str
) -> None:
    """A user may rename the directory, also to a name that only looks like a time."""
    (tmp_path / name).mkdir()
    os.utime(tmp_path / name, ns=(7, 7))

    assert quarantine_list.find_all(tmp_path) == [Kept(tmp_path / name, 7)]


def test_unreadable_quarantined_state_is_listed(tmp_path: Path) -> None:
    """A state without a database, or with a corrupt database, is listed with the reason."""
    (tmp_path / "kept-1" / "blocks" / "xxx").mkdir(parents=True)
    (tmp_path / "kept-1" / "blocks" / "xxx" / "1f").write_bytes(b"content")
    (tmp_path / "kept-2").mkdir()
    (tmp_path / "kept-2" / "meta.db").write_bytes(b"no database" * 1000)

    found = [quarantine_list.summary(kept) for kept in quarantine_list.find_all(tmp_path)]

    assert [one["name"] for one in found] == ["kept-1", "kept-2"]
    assert all(one["why_unreadable"] for one in found)
    assert "1 block file, 7 bytes" in found[0]["why_unreadable"]


def test_quarantined_state_with_an_unknown_state_of_a_block_is_listed(
    db: Database, tmp_path: Path
) -> None:
    db.run("INSERT INTO cached_blocks VALUES (5, 9, 1, 0, 0)")
    db.commit()
    db.close()

    assert "block 5" in quarantine_list.summary(Kept(tmp_path, 1))["why_unreadable"]


def test_list_of_quarantined_state_without_dirty_blocks_needs_no_bucket(
    db: Database, tmp_path: Path
) -> None:
    """The summary of a quarantined state is computed from the rows of its database."""
    db.commit()
    db.close()

    found = quarantine_list.summary(Kept(tmp_path, 1))

    assert (found["only_here_bytes"], found["why_unreadable"]) == (0, "")


def test_only_unshipped_changes_of_quarantined_state_are_listed(
    db: Database, tmp_path: Path
) -> None:
    """Changed and new entries are listed, but not the parent directories of new entries."""
    old = _make(db, ROOT_INO, b"old")
    folder = _make(db, ROOT_INO, b"folder", DIRECTORY)
    changed = _make(db, ROOT_INO, b"changed")
    db.commit()
    (tmp_path / "base.db").write_bytes((tmp_path / "meta.db").read_bytes())
    db.begin()
    inodes.touch(db, changed, ctime_ns=7)
    inodes.touch(db, folder, ctime_ns=7)
    new = _make(db, folder, b"new")
    empty = _make(db, folder, b"empty", DIRECTORY)

    with closing(Database.open(tmp_path / "base.db", Pragmas(), read_only=True)) as base:
        assert quarantine_list.changed(db, base) == [changed, new, empty]
    assert set(quarantine_list.changed(db, None)) == {old, folder, changed, new, empty}


def test_quarantine_list_shows_every_name_of_a_changed_file(db: Database) -> None:
    outer = _make(db, ROOT_INO, b"outer", DIRECTORY)
    inner = _make(db, outer, b"inner", DIRECTORY)
    file = _make(db, inner, b"file")
    dentries.add(db, ROOT_INO, b"link", file)

    names = Names(db, {file})

    assert sorted(names.paths(file)) == [b"link", b"outer/inner/file"]
    assert list(names.directories()) == [(outer, b"outer"), (inner, b"outer/inner")]


def test_inodes_with_damaged_names_are_listed_in_lost_and_found(db: Database) -> None:
    """An inode with a damaged name or parent is listed with the path lost+found/#INO."""
    one = _make(db, ROOT_INO, b"one", DIRECTORY)
    two = _make(db, one, b"two", DIRECTORY)
    db.run("UPDATE dentries SET parent = ? WHERE ino = ?", (two, one))
    in_circle = _make(db, two, b"f")
    in_the_air = _make(db, Ino(4711), b"f")
    outside = _make(db, ROOT_INO, b"x")
    db.run("UPDATE dentries SET name = ? WHERE ino = ?", (b"../x", outside))

    no_utf8 = _make(db, ROOT_INO, b"y")
    db.run("UPDATE dentries SET parent = CAST(x'ff' AS TEXT) WHERE ino = ?", (no_utf8,))

    names = Names(db, {in_circle, in_the_air, outside, no_utf8})

    for ino in (in_circle, in_the_air, outside, no_utf8):
        assert names.paths(ino) == [b"lost+found/#%d" % ino]
