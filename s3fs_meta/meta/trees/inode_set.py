"""A compact set of inode numbers, with which walks detect directories that they find twice.

Owns: the representation. Does not know: the purpose of a walk.
"""

from typing import Final

from s3fs_meta.model import Ino

_SET_BITS: Final = 1 << 10  # number of inode numbers in one integer of a set


class InodeSet:
    """A set of inode numbers; adjacent numbers share an integer, to save memory."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}

    def add(self, ino: Ino) -> bool:
        """Add an inode number; return whether it is new."""
        number, bit = divmod(ino, _SET_BITS)
        mask = self._masks.get(number, 0)
        self._masks[number] = mask | 1 << bit
        return not mask >> bit & 1
