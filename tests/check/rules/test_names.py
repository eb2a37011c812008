"""Damage to names and to the directory tree, one invariant at a time."""

import stat

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.limits import COOKIE_COLLISION_BITS
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Cookie, Ino
from tests.check.healthy import NOW_NS, Healthy


def _count_dentries(healthy: Healthy, parent: Ino, added: int) -> None:
    """Correct the size of a directory and the counter after a test added or removed entries."""
    healthy.db.begin()
    inodes.change_directory(healthy.db, parent, NOW_NS, entries=added)
    healthy.db.counters.dentries += added
    healthy.db.commit()


def _lost_and_found(healthy: Healthy) -> Ino:
    found = dentries.find(healthy.db, ROOT_INO, b"lost+found")
    assert found is not None
    return found


def test_name_without_an_inode_is_removed(healthy: Healthy) -> None:
    """I21: fsck removes a name whose inode and data are missing."""
    nowhere = healthy.db.counters.take_ino()
    healthy.db.begin()
    dentries.add(healthy.db, healthy.inner, b"nowhere", nowhere)
    inodes.change_directory(healthy.db, healthy.inner, NOW_NS, entries=1)
    healthy.db.commit()

    healthy.assert_mended("I21", concerns={healthy.inner})

    assert dentries.find(healthy.db, healthy.inner, b"nowhere") is None


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0b", b"n" * 256, "text"])
def test_invalid_name_is_changed_in_place(healthy: Healthy, name: bytes | str) -> None:
    """I22: fsck replaces the name by a valid one in the same directory."""
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


def test_invalid_name_does_not_take_an_existing_one(healthy: Healthy) -> None:
    """I22: if the nearest valid name exists, fsck appends a number."""
    for old, new in ((b"fifo", b"a/b"), (b"attributed", b"a_b")):
        cookie = healthy.db.name_hash(new) << COOKIE_COLLISION_BITS
        healthy.sql("UPDATE dentries SET name = ?, cookie = ? WHERE name = ?", new, cookie, old)

    healthy.assert_mended("I22", concerns={healthy.inner})

    assert dentries.find(healthy.db, healthy.inner, b"a_b") == healthy.attributed
    assert dentries.find(healthy.db, healthy.inner, b"a_b~1") == healthy.fifo


def test_misplaced_name_is_found_again(healthy: Healthy) -> None:
    """I23: fsck moves a name to the position of its hash, where lookups expect it."""
    healthy.sql("UPDATE dentries SET cookie = cookie + 256 WHERE ino = ?", healthy.fifo)
    assert dentries.find(healthy.db, healthy.inner, b"fifo") is None

    healthy.assert_mended("I23")

    assert healthy.dump() == healthy.before


@pytest.mark.parametrize("same_inode", [False, True])
def test_second_of_two_equal_names_is_changed(healthy: Healthy, same_inode: bool) -> None:
    """I24: fsck renames the second name, or removes it if both refer to one inode."""
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
    assert healthy.check(Mode.ALL).exit_status == 1

    assert healthy.check().lines() == ["clean"]
    assert dentries.find(healthy.db, healthy.inner, b"fifo") == healthy.fifo
    other = None if same_inode else healthy.attributed
    assert dentries.find(healthy.db, healthy.inner, b"fifo~1") == other


def test_directory_with_two_names_keeps_the_one_of_its_parent(healthy: Healthy) -> None:
    """I25: a directory has one name, in the directory that its column ``parent`` names."""
    healthy.db.begin()
    dentries.add(healthy.db, ROOT_INO, b"second name", healthy.inner)
    inodes.change_directory(healthy.db, ROOT_INO, NOW_NS, entries=1, subdirectories=1)
    healthy.db.commit()

    healthy.assert_mended("I25", concerns={ROOT_INO})

    assert dentries.find(healthy.db, healthy.directory, b"inner") == healthy.inner
    assert dentries.find(healthy.db, ROOT_INO, b"second name") is None


def test_name_of_the_root_is_removed(healthy: Healthy) -> None:
    """I25: the root has no name."""
    healthy.db.begin()
    dentries.add(healthy.db, healthy.inner, b"root", ROOT_INO)
    inodes.change_directory(healthy.db, healthy.inner, NOW_NS, entries=1, subdirectories=1)
    healthy.db.commit()

    healthy.assert_mended("I25", concerns={healthy.inner})


@pytest.mark.parametrize("known", ["fifo", "inner", "uploaded"])
def test_unnamed_inode_is_moved_to_lost_and_found(healthy: Healthy, known: str) -> None:
    """I26: the inode gets its number as its name, and a directory keeps its entries."""
    ino = getattr(healthy, known)
    parent = inodes.get(healthy.db, ino).parent
    healthy.sql("DELETE FROM dentries WHERE ino = ?", ino)
    _count_dentries(healthy, parent, -1)
    if known == "inner":
        healthy.sql("UPDATE inodes SET nlink = nlink - 1 WHERE ino = ?", parent)

    home = Ino(healthy.db.counters.next_ino)
    healthy.assert_mended("I26", concerns={ino, parent, ROOT_INO, home})

    assert _lost_and_found(healthy) == home
    assert dentries.find(healthy.db, home, b"#%d" % ino) == ino
    assert stat.S_IMODE(inodes.get(healthy.db, home).mode) == 0o700


def test_lost_and_found_is_used_again(healthy: Healthy) -> None:
    """I26: a second run of fsck uses the directory that the first run made."""
    for ino in (healthy.fifo, healthy.attributed):
        healthy.sql("DELETE FROM dentries WHERE ino = ?", ino)
        healthy.check(Mode.ALL)

    home = _lost_and_found(healthy)
    page = dentries.page(healthy.db, home, Cookie(0), 10)
    assert {row[0] for row in page} == {b"#%d" % healthy.fifo, b"#%d" % healthy.attributed}


def test_file_named_lost_and_found_is_left_alone(healthy: Healthy) -> None:
    """I26: if lost+found is a file, recovered inodes are moved to lost+found~1."""
    healthy.db.begin()
    healthy.create(ROOT_INO, b"lost+found")
    healthy.db.commit()
    healthy.sql("DELETE FROM dentries WHERE ino = ?", healthy.fifo)

    healthy.check(Mode.ALL)

    assert healthy.check().lines() == ["clean"]
    home = dentries.find(healthy.db, ROOT_INO, b"lost+found~1")
    assert home is not None
    assert dentries.find(healthy.db, home, b"#%d" % healthy.fifo) == healthy.fifo


def test_unlinked_directory_with_entries_is_kept(healthy: Healthy) -> None:
    """I26: a directory with entries was not removed by a user, so fsck keeps it."""
    healthy.sql("DELETE FROM dentries WHERE ino = ?", healthy.inner)
    healthy.sql("UPDATE inodes SET nlink = 0 WHERE ino = ?", healthy.inner)

    assert "I26" in healthy.check().broken
    healthy.check(Mode.ALL)

    assert healthy.check().lines() == ["clean"]
    assert dentries.find(healthy.db, healthy.inner, b"fifo") == healthy.fifo


def test_cycle_of_directories_is_broken(healthy: Healthy) -> None:
    """I27: fsck cuts the cycle at one directory and moves it with all entries to lost+found."""
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
    """I27: the shortest possible cycle is a directory that contains itself."""
    healthy.sql("UPDATE dentries SET parent = ?1 WHERE ino = ?1", healthy.inner)

    assert "I27" in healthy.check().broken
    healthy.check(Mode.ALL)

    assert healthy.check().lines() == ["clean"]
    home = _lost_and_found(healthy)
    assert dentries.find(healthy.db, home, b"#%d" % healthy.inner) == healthy.inner
