"""How far the work on a whole tree is.

Owns: two numbers. Does not know: what the work is, who is told.
How large a tree is nobody knows before all its directories were looked at: what is left is at
least what the known ones have.
"""

from typing import NamedTuple


class TreeProgress(NamedTuple):
    """Names that are done, and names that are known to be left."""

    done: int
    left: int

    def step(self, names: int, found: int) -> "TreeProgress":
        """Return how far it is after a slice.

        Args:
            names: how many were done.
            found: how many names the directories among them have.
        """
        return TreeProgress(self.done + names, max(self.left + found - names, 0))
