"""Tests of damage to names and to the directory tree, one invariant at a time."""

import stat

import pytest

from s3fs_meta.check.fsck import check_database
from s3fs_meta.check.report import Mode, Report
from s3fs_meta.limits import COOKIE_COLLISION_BITS
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Cookie, Ino
from tests.check.healthy import NOW_NS, Healthy

pytestmark = pytest.mark.thorough


def _count_dentries(healthy: Healthy, parent: Ino, added: int) -> None:
    """Adjust the directory size and the counter after a test added or removed entries."""
    healthy.db.begin()
    inodes.change_directory(healthy.db, parent, NOW_NS, entries=added)
    healthy.db.counters.dentries += added
    healthy.db.commit()


def test_name_that_refers_to_a_missing_inode_is_removed(healthy: Healthy) -> None:
    """fsck removes a name if the inode and all of its data are missing.

    Invariant I21.
    """
    nowhere = healthy.db.counters.take_ino()
    healthy.db.begin()
    dentries.add(healthy.db, healthy.inner, b"nowhere", nowhere)
    inodes.change_directory(healthy.db, healthy.inner, NOW_NS, entries=1)
    healthy.db.commit()

    healthy.assert_mended("I21", concerns={healthy.inner})

    assert dentries.find(healthy.db, healthy.inner, b"nowhere") is None


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0b", b"n" * 256, "text"])
def test_invalid_name_is_replaced_by_a_valid_name(healthy: Healthy, name: bytes | str) -> None:
    """fsck replaces an invalid name with a valid one in the same directory.

    Invariant I22.
    """
    raw = name if isinstance(name, bytes) else name.encode()
    cookie = healthy.db.name_hash(raw) << COOKIE_COLLISION_BITS
    healthy.sql(
        "UPDATE dentries SET name = ?, cookie = ? WHERE ino = ?", name, cookie, healthy.fifo
    )

    healthy.assert_mended("I22", concerns={healthy.inner})

    new = healthy.name_of(healthy.inner, healthy.fifo)
    assert new not in {b"", b".", b".."}
    assert not set(new) & {0, ord("/")}
    assert dentries.find(healthy.db, healthy.inner, new) == healthy.fifo


def test_repair_of_an_invalid_name_does_not_replace_an_existing_name(healthy: Healthy) -> None:
    """If the nearest valid name already exists, fsck appends a number to the new name."""
    for old, new in ((b"fifo", b"a/b"), (b"attributed", b"a_b")):
        cookie = healthy.db.name_hash(new) << COOKIE_COLLISION_BITS
        healthy.sql("UPDATE dentries SET name = ?, cookie = ? WHERE name = ?", new, cookie, old)

    healthy.assert_mended("I22", concerns={healthy.inner})

    assert dentries.find(healthy.db, healthy.inner, b"a_b") == healthy.attributed
    assert dentries.find(healthy.db, healthy.inner, b"a_b~1") == healthy.fifo


def test_name_at_a_wrong_position_in_its_directory_can_be_found_after_repair(
    healthy: Healthy,
) -> None:
    """fsck moves a name to the position of its hash, where lookups search for it.

    Invariant I23.
    """
    healthy.sql("UPDATE dentries SET cookie = cookie + 256 WHERE ino = ?", healthy.fifo)
    assert dentries.find(healthy.db, healthy.inner, b"fifo") is None

    healthy.assert_mended("I23")

    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("same_inode", [False, True])
def test_second_of_two_equal_names_in_one_directory_is_renamed(
    healthy: Healthy, same_inode: bool
) -> None:
    """fsck renames the second of two equal names.

    If both refer to one inode, it removes the second.

    Invariant I24.
    """
    second = healthy.fifo if same_inode else healthy.attributed
    first_cookie = healthy.db.name_hash(b"fifo") << COOKIE_COLLISION_BITS
    if same_inode:
        healthy.sql(
            "INSERT INTO dentries VALUES (?, ?, ?, ?)",
            healthy.inner,
            first_cookie + 1,
            b"fifo",
            second,
        )
    else:
        healthy.sql(
            "UPDATE dentries SET name = ?, cookie = ? WHERE ino = ?",
            b"fifo",
            first_cookie + 1,
            second,
        )

    assert "I24" in healthy.check().broken
    healthy.assert_repaired()
    assert dentries.find(healthy.db, healthy.inner, b"fifo") == healthy.fifo
    other = None if same_inode else healthy.attributed
    assert dentries.find(healthy.db, healthy.inner, b"fifo~1") == other


def test_each_of_three_equal_names_in_one_directory_keeps_one_name(healthy: Healthy) -> None:
    """fsck renames the third name only once, although it equals two other names."""
    cookie = healthy.db.name_hash(b"fifo") << COOKIE_COLLISION_BITS
    healthy.db.begin()
    third = healthy.create(healthy.inner, b"third")
    healthy.db.commit()
    for number, ino in enumerate((healthy.attributed, third), start=1):
        healthy.sql(
            "UPDATE dentries SET name = x'6669666f', cookie = ? WHERE ino = ?", cookie + number, ino
        )

    healthy.assert_repaired()

    names = healthy.db.all(
        "SELECT ino, count(*) FROM dentries WHERE parent = ? GROUP BY ino", (healthy.inner,)
    )
    assert names == [(healthy.fifo, 1), (healthy.attributed, 1), (third, 1)]
    assert inodes.get(healthy.db, third).nlink == 1


def test_directory_with_two_names_keeps_the_name_in_its_parent_directory(healthy: Healthy) -> None:
    """fsck removes the second name, because a directory has one name, in its parent directory.

    Invariant I25.
    """
    healthy.db.begin()
    dentries.add(healthy.db, ROOT_INO, b"second name", healthy.inner)
    inodes.change_directory(healthy.db, ROOT_INO, NOW_NS, entries=1, subdirectories=1)
    healthy.db.commit()

    healthy.assert_mended("I25", concerns={ROOT_INO})

    assert dentries.find(healthy.db, healthy.directory, b"inner") == healthy.inner
    assert dentries.find(healthy.db, ROOT_INO, b"second name") is None


def test_name_of_the_root_directory_is_removed(healthy: Healthy) -> None:
    healthy.db.begin()
    dentries.add(healthy.db, healthy.inner, b"root", ROOT_INO)
    inodes.change_directory(healthy.db, healthy.inner, NOW_NS, entries=1, subdirectories=1)
    healthy.db.commit()

    healthy.assert_mended("I25", concerns={healthy.inner})


@pytest.mark.parametrize("known", ["fifo", "inner", "uploaded"])
def test_inode_without_a_name_is_moved_to_lost_and_found(healthy: Healthy, known: str) -> None:
    """In lost+found, fsck names an inode by its number, and a directory keeps its entries.

    Invariant I26.
    """
    ino = getattr(healthy, known)
    parent = inodes.get(healthy.db, ino).parent
    healthy.sql("DELETE FROM dentries WHERE ino = ?", ino)
    _count_dentries(healthy, parent, -1)
    if known == "inner":
        healthy.sql("UPDATE inodes SET nlink = nlink - 1 WHERE ino = ?", parent)

    home = Ino(healthy.db.counters.next_ino)
    healthy.assert_mended("I26", concerns={ino, parent, ROOT_INO, home})

    assert healthy.lost_and_found() == home
    assert dentries.find(healthy.db, home, b"#%d" % ino) == ino
    assert stat.S_IMODE(inodes.get(healthy.db, home).mode) == 0o700


def test_new_lost_and_found_directory_is_not_placed_into_itself(healthy: Healthy) -> None:
    """fsck names the new lost+found before it searches for inodes without a name (I26)."""
    healthy.sql("DELETE FROM dentries WHERE ino = ?", healthy.fifo)
    notes: list[str] = []

    check_database(healthy.db, repair=Mode.ALL, report=Report(on_note=notes.append))

    assert [one for one in notes if "I26" in one]
    assert not [one for one in notes if "I25" in one]
    assert dentries.find(healthy.db, healthy.lost_and_found(), b"#%d" % healthy.fifo) is not None


def test_existing_lost_and_found_directory_is_used(healthy: Healthy) -> None:
    """A second run of fsck uses the lost+found directory that the first run created (I26)."""
    for ino in (healthy.fifo, healthy.attributed):
        healthy.sql("DELETE FROM dentries WHERE ino = ?", ino)
        healthy.check(Mode.ALL)

    home = healthy.lost_and_found()
    page = dentries.page(healthy.db, home, Cookie(0), 10)
    assert {row[0] for row in page} == {b"#%d" % healthy.fifo, b"#%d" % healthy.attributed}


def test_file_named_lost_and_found_is_not_changed(healthy: Healthy) -> None:
    """If lost+found is a file, recovered inodes are moved to lost+found~1 (I26)."""
    healthy.db.begin()
    healthy.create(ROOT_INO, b"lost+found")
    healthy.db.commit()
    healthy.sql("DELETE FROM dentries WHERE ino = ?", healthy.fifo)

    healthy.check(Mode.ALL)

    assert healthy.check().lines() == ["clean"]
    home = dentries.find(healthy.db, ROOT_INO, b"lost+found~1")
    assert home is not None
    assert dentries.find(healthy.db, home, b"#%d" % healthy.fifo) == healthy.fifo


def test_directory_with_entries_but_without_a_name_is_kept(healthy: Healthy) -> None:
    """fsck keeps a nameless directory with entries, because rmdir cannot have removed it."""
    healthy.sql("DELETE FROM dentries WHERE ino = ?", healthy.inner)
    healthy.sql("UPDATE inodes SET nlink = 0 WHERE ino = ?", healthy.inner)

    assert "I26" in healthy.check().broken
    healthy.check(Mode.ALL)

    assert healthy.check().lines() == ["clean"]
    assert dentries.find(healthy.db, healthy.inner, b"fifo") == healthy.fifo


def test_cycle_of_directories_is_moved_to_lost_and_found(healthy: Healthy) -> None:
    """fsck breaks a cycle of directories at one directory, which keeps all of its entries.

    Invariant I27.
    """
    healthy.db.begin()
    outer = healthy.mkdir(healthy.inner, b"outer")
    healthy.db.commit()
    healthy.sql("UPDATE dentries SET parent = ? WHERE ino = ?", outer, healthy.inner)
    healthy.sql("UPDATE inodes SET parent = ? WHERE ino = ?", outer, healthy.inner)
    for ino, entries in ((outer, 1), (healthy.directory, -1)):
        healthy.sql(
            "UPDATE inodes SET size_bytes = size_bytes + ?1, nlink = nlink + ?1 WHERE ino = ?2",
            entries,
            ino,
        )

    home = Ino(healthy.db.counters.next_ino)
    healthy.assert_mended("I27", concerns={healthy.inner, outer, healthy.directory, ROOT_INO, home})

    assert dentries.find(healthy.db, home, b"#%d" % healthy.inner) == healthy.inner
    assert dentries.find(healthy.db, healthy.inner, b"outer") == outer


def test_directory_that_contains_itself_is_moved_to_lost_and_found(healthy: Healthy) -> None:
    """A directory that contains itself is the shortest possible cycle of directories."""
    healthy.sql("UPDATE dentries SET parent = ?1 WHERE ino = ?1", healthy.inner)

    assert "I27" in healthy.check().broken
    healthy.check(Mode.ALL)

    assert healthy.check().lines() == ["clean"]
    home = healthy.lost_and_found()
    assert dentries.find(healthy.db, home, b"#%d" % healthy.inner) == healthy.inner
