"""Tests of damage to inodes, one invariant at a time."""

import stat

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.limits import PAST_INO_MIN
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.meta.trees import removed_trees
from s3fs_meta.model import ROOT_INO, Cookie, Ino, InodeFlag
from tests.check.healthy import NOW_NS, Healthy

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("change", ["mode = 33188", "nlink = 0", "parent = 77"])
def test_damaged_row_of_the_root_directory_is_corrected(healthy: Healthy, change: str) -> None:
    """fsck corrects the row of the root directory, and keeps all of its entries.

    Invariant I7.
    """
    healthy.sql(f"UPDATE inodes SET {change} WHERE ino = 1")

    assert "I7" in healthy.check().broken
    healthy.assert_repaired()
    assert healthy.changed_inodes() <= {ROOT_INO}
    assert healthy.dump()["dentries"] == healthy.before["dentries"]
    assert stat.S_ISDIR(inodes.get(healthy.db, ROOT_INO).mode)


def test_missing_root_directory_row_is_created_again(healthy: Healthy) -> None:
    """fsck recreates the row of the root directory, and keeps all of its entries."""
    healthy.sql("DELETE FROM inodes WHERE ino = 1")

    assert "I7" in healthy.check().broken
    healthy.assert_repaired()
    assert healthy.changed_inodes() == {ROOT_INO}
    assert healthy.dump()["dentries"] == healthy.before["dentries"]
    assert stat.S_IMODE(inodes.get(healthy.db, ROOT_INO).mode) == 0o755


def test_root_directory_is_created_even_if_no_other_row_refers_to_it(healthy: Healthy) -> None:
    for table in ("inodes", "dentries", "hard_links", "symlinks", "xattrs", "block_map"):
        healthy.sql(f"DELETE FROM {table}")

    healthy.check(Mode.ALL)

    assert healthy.check().lines() == ["clean"]
    assert inodes.get(healthy.db, ROOT_INO).mode == stat.S_IFDIR | 0o755


@pytest.mark.parametrize("change", ["uid = -1", "gid = 1 << 33", "rdev = -1"])
def test_impossible_owner_or_device_number_of_an_inode_is_replaced(
    healthy: Healthy, change: str
) -> None:
    """The new owner is the owner of the root directory, and the new device number is 0.

    Invariant I8.
    """
    healthy.sql(f"UPDATE inodes SET {change} WHERE ino = ?", healthy.fifo)
    healthy.assert_mended("I8", concerns={healthy.fifo})

    column = change.split(maxsplit=1)[0]
    expected = getattr(inodes.get(healthy.db, ROOT_INO), column)
    assert getattr(inodes.get(healthy.db, healthy.fifo), column) == expected


@pytest.mark.parametrize("column", ["uid", "gid"])
def test_impossible_owner_of_the_root_directory_becomes_root(healthy: Healthy, column: str) -> None:
    """For the root directory itself, fsck sets an impossible owner to user 0 (I8)."""
    healthy.sql(f"UPDATE inodes SET {column} = -5 WHERE ino = ?", ROOT_INO)
    healthy.assert_mended("I8", concerns={ROOT_INO})
    assert getattr(inodes.get(healthy.db, ROOT_INO), column) == 0


def test_impossible_file_size_is_recomputed_from_the_blocks_of_the_file(healthy: Healthy) -> None:
    """fsck replaces a negative file size by the end of the file's last block."""
    size = inodes.get(healthy.db, healthy.uploaded).size_bytes
    healthy.sql("UPDATE inodes SET size_bytes = -5 WHERE ino = ?", healthy.uploaded)

    assert {"I8", "I59"} <= set(healthy.check().broken)
    healthy.check(Mode.ALL)

    assert healthy.check().lines() == ["clean"]
    assert inodes.get(healthy.db, healthy.uploaded).size_bytes == size


@pytest.mark.parametrize("known", ["inner", "uploaded", "symlink", "attributed"])
@pytest.mark.parametrize("with_row", [True, False])
@pytest.mark.parametrize("wrong", [-5, PAST_INO_MIN, (1 << 63) - 1])
def test_impossible_inode_number_is_replaced_by_a_new_number(
    healthy: Healthy, known: str, wrong: int, with_row: bool
) -> None:
    """fsck renumbers an inode with an impossible number in every table, but keeps its name."""
    ino, new = getattr(healthy, known), healthy.db.counters.next_ino
    for table in ("inodes", "dentries", "symlinks", "xattrs", "block_map", "cached_blocks"):
        healthy.sql(f"UPDATE {table} SET ino = {wrong} WHERE ino = ?", ino)
    healthy.sql(f"UPDATE inodes SET parent = {wrong} WHERE parent = ?", ino)
    healthy.sql(f"UPDATE dentries SET parent = {wrong} WHERE parent = ?", ino)
    if not with_row and known != "attributed":
        healthy.sql(f"DELETE FROM inodes WHERE ino = {wrong}")

    healthy.assert_repaired()
    parent = healthy.inner if known == "attributed" else healthy.directory
    assert dentries.find(healthy.db, parent, known.encode()) == new


@pytest.mark.parametrize("known", ["directory", "uploaded", "symlink", "fifo"])
def test_unknown_inode_type_is_deduced_from_the_content(healthy: Healthy, known: str) -> None:
    """fsck makes an inode with entries a directory, one with a target a symlink, others files.

    Invariant I9.
    """
    ino = getattr(healthy, known)
    healthy.sql("UPDATE inodes SET mode = 7 << 12 | 420 WHERE ino = ?", ino)

    assert "I9" in healthy.check().broken
    healthy.assert_repaired()
    concerned = {ino, ROOT_INO, healthy.inner} if known == "directory" else {ino}
    assert healthy.changed_inodes() <= concerned
    kinds = {"directory": stat.S_ISDIR, "symlink": stat.S_ISLNK}
    assert kinds.get(known, stat.S_ISREG)(inodes.get(healthy.db, ino).mode)


LAST = (1 << 63) - 1  # The largest integer that SQLite can store.


@pytest.mark.parametrize(
    "change", [f"mtime_delta_ns = {LAST}", f"btime_delta_ns = {LAST}", "ctime_ns = -1"]
)
def test_out_of_range_times_of_an_inode_are_replaced_by_its_ctime(
    healthy: Healthy, change: str
) -> None:
    """fsck replaces a time that is out of range by the time of the inode's last change.

    Invariant I10.
    """
    healthy.sql(f"UPDATE inodes SET {change} WHERE ino = ?", healthy.fifo)
    healthy.assert_mended("I10", concerns={healthy.fifo})


def test_repair_makes_an_inode_with_entries_and_no_blocks_a_directory(healthy: Healthy) -> None:
    """The repair changes the type of the inode, here a FIFO, to directory."""
    mode = stat.S_IFIFO | 0o755
    healthy.sql("UPDATE inodes SET mode = ? WHERE ino = ?", mode, healthy.inner)

    assert "I11" in healthy.check().broken
    healthy.assert_repaired()
    assert healthy.changed_inodes() == set()


def test_entries_of_a_file_with_blocks_are_moved_to_lost_and_found(healthy: Healthy) -> None:
    """fsck moves the entries to a new directory in lost+found; the file keeps its blocks.

    Invariant I11.
    """
    healthy.sql("UPDATE dentries SET parent = ? WHERE parent = ?", healthy.uploaded, healthy.inner)

    broken = healthy.check().broken
    assert "I11" in broken
    healthy.assert_repaired()
    [moved] = dentries.page(healthy.db, healthy.lost_and_found(), Cookie(0), 10)
    assert dentries.find(healthy.db, moved[2].ino, b"fifo") == healthy.fifo
    assert inodes.get(healthy.db, healthy.uploaded).mapped_blocks == 3


def test_fifo_that_has_blocks_becomes_a_regular_file(healthy: Healthy) -> None:
    """A FIFO cannot have blocks, so fsck makes it a regular file."""
    mode = inodes.get(healthy.db, healthy.dirty).mode
    healthy.sql("UPDATE inodes SET mode = ? WHERE ino = ?", stat.S_IFIFO | 0o644, healthy.dirty)

    assert "I12" in healthy.check().broken
    healthy.assert_repaired()
    assert inodes.get(healthy.db, healthy.dirty).mode == mode
    assert healthy.changed_inodes() == set()


def test_blocks_of_a_directory_are_moved_to_lost_and_found(healthy: Healthy) -> None:
    """fsck moves the blocks to a new file in lost+found; the directory keeps its entries.

    Invariant I12.
    """
    healthy.sql("UPDATE block_map SET ino = ? WHERE ino = ?", healthy.inner, healthy.dirty)

    assert "I12" in healthy.check().broken
    healthy.assert_repaired()
    [(_, _, moved)] = dentries.page(healthy.db, healthy.lost_and_found(), Cookie(0), 10)
    assert (stat.S_ISREG(moved.mode), moved.mapped_blocks) == (True, 2)
    assert dentries.find(healthy.db, healthy.inner, b"fifo") == healthy.fifo


def test_symlink_target_of_a_file_with_blocks_is_moved_to_lost_and_found(healthy: Healthy) -> None:
    """fsck moves the target to a new symlink in lost+found; the file keeps its blocks.

    Invariant I13.
    """
    healthy.sql("INSERT INTO symlinks VALUES (?, x'61')", healthy.uploaded)

    assert healthy.check().broken == ["I13"]
    healthy.assert_repaired()
    [(_, _, moved)] = dentries.page(healthy.db, healthy.lost_and_found(), Cookie(0), 10)
    assert stat.S_ISLNK(moved.mode)


def test_missing_inode_with_entries_becomes_a_directory_again(healthy: Healthy) -> None:
    """fsck recreates the inode of a directory, which keeps its name and its entries.

    Invariant I14.
    """
    healthy.sql("DELETE FROM inodes WHERE ino = ?", healthy.inner)

    assert "I14" in healthy.check().broken
    healthy.assert_repaired()
    assert healthy.changed_inodes() == {healthy.inner}
    assert dentries.find(healthy.db, healthy.directory, b"inner") == healthy.inner
    assert dentries.find(healthy.db, healthy.inner, b"fifo") == healthy.fifo


def test_missing_inode_with_blocks_becomes_a_file_again(healthy: Healthy) -> None:
    """fsck recreates a file from its blocks, with the inode number to which its name refers.

    Invariant I15.
    """
    before = inodes.get(healthy.db, healthy.uploaded)
    healthy.sql("DELETE FROM inodes WHERE ino = ?", healthy.uploaded)

    assert "I15" in healthy.check().broken
    healthy.assert_repaired()
    assert healthy.changed_inodes() == {healthy.uploaded}
    after = inodes.get(healthy.db, healthy.uploaded)
    assert (after.size_bytes, after.mapped_blocks) == (before.size_bytes, before.mapped_blocks)


def test_missing_inode_with_a_symlink_target_becomes_a_symlink_again(healthy: Healthy) -> None:
    """fsck recreates a symlink from its target, with the old inode number.

    Invariant I16.
    """
    healthy.sql("DELETE FROM inodes WHERE ino = ?", healthy.symlink)

    assert "I16" in healthy.check().broken
    healthy.assert_repaired()
    assert healthy.changed_inodes() == {healthy.symlink}


def test_extended_attributes_of_a_missing_inode_are_removed(healthy: Healthy) -> None:
    """fsck removes attributes of a missing inode to which no other row refers.

    Invariant I17.
    """
    healthy.sql("INSERT INTO xattrs VALUES (?, x'61', x'62')", healthy.db.counters.next_ino - 1)
    healthy.sql("UPDATE xattrs SET ino = 0 WHERE name = x'61'")
    healthy.assert_mended("I17")


def test_extended_attributes_of_a_missing_inode_are_kept_if_it_has_a_name(healthy: Healthy) -> None:
    """fsck recreates a missing inode with a name as an empty file with its extended attributes."""
    healthy.sql("DELETE FROM inodes WHERE ino = ?", healthy.attributed)

    assert "I17" in healthy.check().broken
    healthy.assert_repaired()
    assert healthy.changed_inodes() == {healthy.attributed}
    assert dentries.find(healthy.db, healthy.inner, b"attributed") == healthy.attributed
    assert healthy.dump()["xattrs"] == healthy.before["xattrs"]


def test_fsck_purges_nameless_inodes_only_on_an_unmounted_filesystem(healthy: Healthy) -> None:
    """On a mounted filesystem, a process may have a nameless file open.

    Invariant I28.
    """
    healthy.db.begin()
    orphan = inodes.create(healthy.db, stat.S_IFREG | 0o600, 0, 0, ROOT_INO, NOW_NS, nlink=0).ino
    healthy.write(orphan, 0, b"unlinked but open")
    healthy.db.commit()

    assert healthy.check(mounted=True).lines() == ["clean"]
    healthy.assert_mended("I28")
    assert inodes.find(healthy.db, orphan) is None


@pytest.mark.parametrize("known", ["attributed", "fifo"])
def test_wrong_xattr_flag_of_an_inode_is_corrected(healthy: Healthy, known: str) -> None:
    """fsck sets the xattr flag of an inode if and only if it has extended attributes.

    Invariant I58.
    """
    ino = getattr(healthy, known)
    healthy.sql("UPDATE inodes SET flags = 1 - flags WHERE ino = ?", ino)
    healthy.assert_mended("I58")
    assert healthy.dump() == healthy.before


def _remove(healthy: Healthy, name: bytes, ino: Ino) -> None:
    """Remove a tree as ``s3fs-meta rm`` does, without the task that purges the tree's inodes."""
    db = healthy.db
    db.begin()
    dentries.remove(db, ROOT_INO, name)
    inodes.change_directory(db, ROOT_INO, NOW_NS, entries=-1, subdirectories=-1)
    removed_trees.mark_removed(db, [ino], NOW_NS)
    db.commit()


def test_fsck_deletes_removed_trees_only_on_an_unmounted_filesystem(healthy: Healthy) -> None:
    """fsck keeps inodes that have a name outside the removed tree, and purges all others.

    Invariant I69.
    """
    _remove(healthy, b"directory", healthy.directory)

    assert healthy.check(mounted=True).lines() == ["clean"]
    assert healthy.check().broken == ["I69"]
    report = healthy.check(Mode.SAFE)

    assert (report.exit_status, report.broken) == (0, ["I69"])
    assert healthy.check().lines() == ["clean"]
    for ino in (healthy.directory, healthy.inner, healthy.dirty, healthy.symlink, healthy.fifo):
        assert inodes.find(healthy.db, ino) is None
    linked = inodes.get(healthy.db, healthy.linked)
    assert (linked.nlink, linked.parent) == (1, ROOT_INO)
    assert not healthy.db.all("SELECT * FROM hard_links WHERE ino = ?", (healthy.linked,))


def test_directory_that_lost_only_its_name_is_kept(healthy: Healthy) -> None:
    """fsck moves a nameless directory to lost+found, unless its flags mark it as removed."""
    db = healthy.db
    db.begin()
    dentries.remove(db, ROOT_INO, b"directory")
    inodes.change_directory(db, ROOT_INO, NOW_NS, entries=-1, subdirectories=-1)
    db.inodes.run("UPDATE inodes SET nlink = 0 WHERE ino = ?", (healthy.directory,))
    db.commit()

    assert healthy.check().broken == ["I26"]
    healthy.check(Mode.ALL)
    assert stat.S_ISDIR(inodes.get(db, healthy.directory).mode)
    assert healthy.check().lines() == ["clean"]


def test_removed_flag_is_cleared_if_the_directory_has_a_name(healthy: Healthy) -> None:
    healthy.sql(
        f"UPDATE inodes SET flags = flags | {InodeFlag.REMOVED:d} WHERE ino = ?", healthy.directory
    )
    healthy.assert_mended("I58")
    assert healthy.dump() == healthy.before
