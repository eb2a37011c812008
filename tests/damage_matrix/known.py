"""Cells that are known to fail, with what will mend them.

Checked strictly: a cell that is listed here and passes fails the test, so the list only shrinks.
"""

from typing import Final, NamedTuple

from .rules import BROKEN, FSCK, Coordinates, Rule, Verdict


class Known(NamedTuple):
    """Some cells, and what will mend them."""

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


_REPLACED: Final = ("another of its kind", "older version", "foreign")

KNOWN: Final[tuple[Known, ...]] = (
    Known(
        ("lease",),
        BROKEN,
        ("mount -o ro", "mount -o ro,at=", "restore"),
        "reading needs no lease, but only a hint of the newest image",
    ),
    Known(
        ("lease",),
        BROKEN,
        ("running writer",),
        "the message of a writer whose lease is lost names no way out",
    ),
    Known(
        ("needed changelog", "part"),
        (*BROKEN, *_REPLACED),
        ("fsck --rebuild -y",),
        "item 1: --rebuild refuses while any image can be restored",
    ),
    Known(
        ("last changelog",),
        ("empty", "truncated", "one bit", "oversized", *_REPLACED),
        ("fsck --rebuild -y",),
        "item 1: --rebuild refuses while any image can be restored",
    ),
    Known(
        ("changelog after the image",),
        (*BROKEN, *_REPLACED),
        (
            "mount",
            "mount, local state",
            "running writer",
            "promote",
            "mount -o ro,at=",
            "rollback",
            *FSCK,
            "reclaim",
            "passphrase",
        ),
        "the txg that a level ends with is refused if its own changelog cannot be read",
    ),
    Known(
        ("last changelog",),
        ("older version",),
        ("fsck -y --deep, local state",),
        "item 1: fsck -y refuses, and its message names fsck -y",
    ),
    Known(
        ("level",),
        ("hostile",),
        ("mount -o ro,at=",),
        "item 17: a row of another type, read from a point in time, is a TypeError",
        encrypted=False,
    ),
    Known(
        ("manifest",),
        ("hostile",),
        ("mount -o ro,at=",),
        "item 15: every point in time takes many seconds beside a manifest of many pieces",
        encrypted=False,
    ),
)


def known(where: Coordinates) -> Known | None:
    """Return why a cell is known to fail, None if it must pass."""
    return next((one for one in KNOWN if one.covers(where)), None)
