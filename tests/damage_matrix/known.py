"""Cells that are known to fail, with the issue for each.

A listed cell that passes fails the test, so the list can only become shorter.
"""

from typing import Final, NamedTuple

from tests.damage_matrix.rules import Coordinates, Rule, Verdict


class Known(NamedTuple):
    """A set of cells that fail, with the issue that describes the bug."""

    kinds: tuple[str, ...]
    damages: tuple[str, ...]
    entrances: tuple[str, ...]
    item: str
    encrypted: bool | None = None

    def covers(self, where: Coordinates) -> bool:
        """Return whether a cell belongs to this set."""
        rule = Rule(
            self.kinds, self.damages, self.entrances, Verdict.WORKS, self.item, self.encrypted
        )
        return rule.covers(where.kind, where.damage, where.entrance, encrypted=where.encrypted)


KNOWN: Final[tuple[Known, ...]] = ()


def known(where: Coordinates) -> Known | None:
    """Return the entry of a cell that is known to fail, or None."""
    return next((one for one in KNOWN if one.covers(where)), None)
