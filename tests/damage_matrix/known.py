"""Cells that are known to fail, with the issue that will fix them.

A listed cell that passes fails the test, so the list can only shrink.
"""

from typing import Final, NamedTuple

from tests.damage_matrix.rules import Coordinates, Rule, Verdict


class Known(NamedTuple):
    """Some failing cells, and the issue that will fix them."""

    kinds: tuple[str, ...]
    damages: tuple[str, ...]
    entrances: tuple[str, ...]
    item: str
    encrypted: bool | None = None

    def covers(self, where: Coordinates) -> bool:
        """Return whether a cell is one of these failing cells."""
        rule = Rule(
            self.kinds, self.damages, self.entrances, Verdict.WORKS, self.item, self.encrypted
        )
        return rule.covers(where.kind, where.damage, where.entrance, encrypted=where.encrypted)


KNOWN: Final[tuple[Known, ...]] = ()


def known(where: Coordinates) -> Known | None:
    """Return the entry of a cell that is known to fail, or None."""
    return next((one for one in KNOWN if one.covers(where)), None)
