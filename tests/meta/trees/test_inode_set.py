"""A compact set of inode numbers."""

from s3fs_meta.meta.trees.inode_set import InodeSet
from s3fs_meta.model import Ino


def test_adding_a_number_to_an_inode_set_reports_whether_it_is_new() -> None:
    """The numbers include extreme ones, because forged rows may contain any integer of SQLite."""
    found = InodeSet()
    numbers = [1, 2, 1023, 1024, 1025, (1 << 63) - 1, 0, -1, -(1 << 63)]
    assert all(found.add(Ino(number)) for number in numbers)
    assert not any(found.add(Ino(number)) for number in numbers)
    assert found.add(Ino(3))
