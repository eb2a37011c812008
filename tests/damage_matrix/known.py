"""Cells that are known to fail, with the issue that will fix them.

Checked strictly: a cell that is listed here and passes fails the test, so the list only shrinks.
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
        """Return whether a cell is one of these."""
        rule = Rule(
            self.kinds, self.damages, self.entrances, Verdict.WORKS, self.item, self.encrypted
        )
        return rule.covers(where.kind, where.damage, where.entrance, encrypted=where.encrypted)


KNOWN: Final[tuple[Known, ...]] = ()


def known(where: Coordinates) -> Known | None:
    """Return why a cell is known to fail, None if it must pass."""
    return next((one for one in KNOWN if one.covers(where)), None)
