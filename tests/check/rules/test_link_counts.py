"""Damage to values counted from names: link counts, parents, sizes; one invariant at a time."""

import pytest

from s3fs_meta.model import ROOT_INO
from tests.check.healthy import Healthy


@pytest.mark.parametrize("known", ["inner", "fifo", "linked"])
def test_parent_is_corrected_from_the_names(healthy: Healthy, known: str) -> None:
    """I52: the column ``parent`` of an inode is a directory with a name of the inode."""
    ino = getattr(healthy, known)
    wrong = healthy.inner if known == "linked" else ROOT_INO
    healthy.sql("UPDATE inodes SET parent = ? WHERE ino = ?", wrong, ino)
    healthy.assert_mended("I52", concerns={ino})


def test_nlink_of_a_file_is_corrected(healthy: Healthy) -> None:
    """I53: with too small a link count an unlink would purge a file that has other names."""
    healthy.sql("UPDATE inodes SET nlink = 0 WHERE ino = ?", healthy.linked)
    healthy.assert_mended("I53")
    assert healthy.dump() == healthy.before


def test_nlink_of_a_directory_is_corrected(healthy: Healthy) -> None:
    """I54: the link count of a directory is 2 plus the number of its subdirectories."""
    healthy.sql("UPDATE inodes SET nlink = 9 WHERE ino = ?", healthy.directory)
    healthy.assert_mended("I54")
    assert healthy.dump() == healthy.before


def test_size_of_a_directory_is_corrected(healthy: Healthy) -> None:
    """I55: with too small a size rmdir would remove a directory that has entries."""
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
def test_hard_links_are_rebuilt_from_the_names(healthy: Healthy, change: str) -> None:
    """I56: fsck recreates missing, wrong and superfluous rows of ``hard_links``."""
    healthy.sql(change)
    healthy.assert_mended("I56")
    assert healthy.dump() == healthy.before
