"""Tests of damage to symlink targets and extended attributes, one invariant at a time."""

import pytest

from s3fs_meta.check.report import Mode
from s3fs_meta.meta.tables import symlinks, xattrs
from tests.check.healthy import Healthy


def test_symlink_without_a_target_gets_a_placeholder(healthy: Healthy) -> None:
    """fsck sets a missing symlink target to a nonexistent path that contains the inode number.

    Invariant I18.
    """
    healthy.sql("DELETE FROM symlinks WHERE ino = ?", healthy.symlink)

    healthy.assert_mended("I18", concerns={healthy.symlink})

    assert symlinks.target(healthy.db, healthy.symlink) == b"(target of inode %d lost)" % (
        healthy.symlink
    )


@pytest.mark.parametrize(
    "target", ["'text'", "x'6100'", "zeroblob(0)", "CAST(printf('%.5000c','a') AS BLOB)"]
)
def test_invalid_symlink_target_is_replaced_by_a_valid_one(healthy: Healthy, target: str) -> None:
    """fsck replaces symlink targets that are text, empty, too long or contain NUL bytes.

    Invariant I19.
    """
    healthy.sql(f"UPDATE symlinks SET target = {target} WHERE ino = ?", healthy.symlink)
    healthy.assert_mended("I19", concerns={healthy.symlink})


def test_invalid_extended_attributes_are_removed(healthy: Healthy) -> None:
    """fsck removes extended attributes that have no name or too large a value, and no others.

    Invariant I20.
    """
    healthy.sql("INSERT INTO xattrs VALUES (?, x'', x'61')", healthy.attributed)
    healthy.sql("INSERT INTO xattrs VALUES (?, x'62', zeroblob(70000))", healthy.attributed)

    healthy.assert_mended("I20")

    assert healthy.dump() == healthy.before


def test_text_in_an_extended_attribute_is_converted_to_bytes(healthy: Healthy) -> None:
    """fsck converts text in the BLOB column ``value``, and keeps the extended attribute."""
    healthy.sql("UPDATE xattrs SET value = 'blue' WHERE value = x'626c7565'")

    healthy.assert_mended("I20")

    assert xattrs.get(healthy.db, healthy.attributed, b"user.colour") == b"blue"


def test_size_of_a_symlink_is_corrected_to_the_length_of_its_target(healthy: Healthy) -> None:
    """fsck sets the size of a symlink to the length of its target.

    Invariant I57.
    """
    healthy.sql("UPDATE inodes SET size_bytes = 3 WHERE ino = ?", healthy.symlink)
    healthy.assert_mended("I57")
    assert healthy.check(Mode.REPORT).lines() == ["clean"]
