"""Tests of damage to link counts, parents and directory sizes, one invariant at a time."""

import pytest

from s3fs_meta.model import ROOT_INO
from tests.check.healthy import Healthy


@pytest.mark.parametrize("known", ["inner", "fifo", "linked"])
def test_wrong_parent_of_an_inode_is_corrected_from_its_names(healthy: Healthy, known: str) -> None:
    """fsck sets the parent of an inode to a directory that contains one of its names.

    Invariant I52.
    """
    ino = getattr(healthy, known)
    wrong = healthy.inner if known == "linked" else ROOT_INO
    healthy.sql("UPDATE inodes SET parent = ? WHERE ino = ?", wrong, ino)
    healthy.assert_mended("I52", concerns={ino})


def test_wrong_link_count_of_a_file_is_corrected(healthy: Healthy) -> None:
    """fsck corrects the count; otherwise, an unlink would purge a file that has other names.

    Invariant I53.
    """
    healthy.sql("UPDATE inodes SET nlink = 0 WHERE ino = ?", healthy.linked)
    healthy.assert_mended("I53")
    assert healthy.dump() == healthy.before


def test_wrong_link_count_of_a_directory_is_corrected(healthy: Healthy) -> None:
    """fsck sets the link count of a directory to 2 plus the number of its subdirectories.

    Invariant I54.
    """
    healthy.sql("UPDATE inodes SET nlink = 9 WHERE ino = ?", healthy.directory)
    healthy.assert_mended("I54")
    assert healthy.dump() == healthy.before


def test_wrong_size_of_a_directory_is_corrected(healthy: Healthy) -> None:
    """fsck corrects the size; otherwise, rmdir would remove a directory that has entries.

    Invariant I55.
    """
    healthy.sql("UPDATE inodes SET size_bytes = 0 WHERE ino = ?", healthy.directory)
    healthy.assert_mended("I55")
    assert healthy.dump() == healthy.before


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM hard_links WHERE parent = 1",
        "UPDATE hard_links SET names = names + 1",
        "INSERT INTO hard_links SELECT ino, 1, 1 FROM inodes WHERE mode & 61440 = 16384",
    ],
)
def test_hard_link_rows_are_rebuilt_from_names(healthy: Healthy, change: str) -> None:
    """fsck recreates missing rows and corrects wrong or superfluous rows of ``hard_links``.

    Invariant I56.
    """
    healthy.sql(change)
    healthy.assert_mended("I56")
    assert healthy.dump() == healthy.before
