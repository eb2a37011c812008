"""Cells of the damage matrix that are known to fail, with the issue of each cell.

If a listed cell passes, the test fails, so fixed cells must be removed from the list.
"""

from typing import Final, NamedTuple

from tests.damage_matrix.rules import Coordinates, Rule, Verdict


class Known(NamedTuple):
    """A set of failing cells of the damage matrix, with the issue that describes the bug."""

    kinds: tuple[str, ...]
    damages: tuple[str, ...]
    entrances: tuple[str, ...]
    item: str
    encrypted: bool | None = None

    def covers(self, where: Coordinates) -> bool:
        """Return whether this set contains a cell of the damage matrix."""
        rule = Rule(
            self.kinds, self.damages, self.entrances, Verdict.WORKS, self.item, self.encrypted
        )
        return rule.covers(where.kind, where.damage, where.entrance, encrypted=where.encrypted)


KNOWN: Final[tuple[Known, ...]] = ()


def known(where: Coordinates) -> Known | None:
    """Return the entry of known failures that covers a cell of the damage matrix, or None."""
    return next((one for one in KNOWN if one.covers(where)), None)
