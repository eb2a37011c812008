"""The expected result of each cell of the matrix: a short table of rules, each with its reason.

The first rule that names object, damage and entrance decides. Most rules leave it to the oracle
whether a way leads to the present; what is lost at most is always computed by it.
"""

import enum
from typing import Final, NamedTuple

from typing_extensions import override

from tests.damage_matrix.damages import DAMAGES, KINDS
from tests.damage_matrix.entrances import ENTRANCES

ANY: Final = ("any",)
BROKEN: Final = ("missing", "empty", "truncated", "one bit", "oversized")
MOUNTED: Final = ("running writer", "running follower", "promote")
READING: Final = ("mount -o ro", "restore")
WRITING: Final = ("mount", "rollback", "reclaim")
SUPERBLOCKS: Final = ("superblock", "superblock-copy", "both superblocks")
FSCK: Final = ("fsck -y", "fsck -y --deep", "fsck -y --deep, local state")
BY_METADATA: Final = (
    "first changelog",
    "middle changelog",
    "changelog after the image",
    "needed changelog",
    "last changelog",
    "part",
    "level",
    "manifest",
    "piece",
    "pack",
    "pack of the past",
)


class Verdict(enum.Enum):
    """The expected results."""

    WORKS = "works"
    BY_WAY = "works if a way leads to the present, else refused: the object, and fsck -y"
    POINTS = "each point in time to which a way leads, with its content; no other"
    FOUND = "status 4 if the present or its content is concerned, else 0 or 4; changes nothing"
    REPAIRED = "repaired; a second run is clean, and another host sees all that is left"
    REFUSED = "refused, with what to do; changes nothing"
    HELD = "refused: another host holds the filesystem; --takeover overrides"
    REBUILT = "names and content come back, as the newest image has them"
    STOPS = "ships nothing more, keeps everything here, and reports it"
    SAFE = "no crash, no hang, bounded memory; intact objects stay"


class Rule(NamedTuple):
    """The expected result of some cells, and the reason."""

    kinds: tuple[str, ...]
    damages: tuple[str, ...]
    entrances: tuple[str, ...]
    verdict: Verdict
    why: str
    encrypted: bool | None = None  # None: any

    def covers(self, kind: str, damage: str, entrance: str, *, encrypted: bool) -> bool:
        """Return whether the rule applies to a cell."""
        return (
            self.encrypted in {None, encrypted}
            and (self.kinds == ANY or kind in self.kinds)
            and (self.damages == ANY or damage in self.damages)
            and (self.entrances == ANY or entrance in self.entrances)
        )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        ANY,
        ("hostile",),
        ANY,
        Verdict.SAFE,
        "nothing of a plain filesystem is authentic: any writer of the bucket can make any state",
        encrypted=False,
    ),
    Rule(
        SUPERBLOCKS,
        ANY,
        MOUNTED,
        Verdict.WORKS,
        "a mount has the keys in memory",
    ),
    Rule(
        ("both superblocks",),
        ("hostile",),
        ("fsck -y --deep, local state",),
        Verdict.REPAIRED,
        "this host has a copy that is authentic",
        encrypted=True,
    ),
    Rule(
        ("both superblocks",),
        ("hostile",),
        ("mount, local state",),
        Verdict.REFUSED,
        "this host has seen that it is encrypted",
        encrypted=True,
    ),
    Rule(
        ("both superblocks",),
        ("hostile",),
        ANY,
        Verdict.REFUSED,
        "a passphrase is given, so a superblock without encryption is an exchanged one",
        encrypted=True,
    ),
    Rule(
        ("both superblocks",),
        ("older version",),
        ("mount, local state",),
        Verdict.REFUSED,
        "this host has seen a newer one: an old passphrase may have been put back",
    ),
    Rule(
        ("both superblocks",),
        (*BROKEN, "foreign"),
        (
            "mount",
            "rollback",
            "reclaim",
            "passphrase",
            *READING,
            "mount -o ro,at=",
            "fsck -n",
            "fsck -y",
            "fsck -y --deep",
            "fsck --rebuild -y",
        ),
        Verdict.REFUSED,
        "every copy of the keys that this host can reach is lost; a host that mounted it has one",
    ),
    Rule(
        ("all manifests",),
        ANY,
        ("fsck --rebuild -y",),
        Verdict.REBUILT,
        "without a manifest, the names of its pieces show where they belong",
    ),
    Rule(
        ("all manifests",),
        ANY,
        (
            "mount",
            "rollback",
            "reclaim",
            *READING,
            "mount -o ro,at=",
            "fsck -n",
            "fsck -y",
            "fsck -y --deep",
        ),
        Verdict.REFUSED,
        "every image is lost, so no way leads anywhere; a host with local state has all",
    ),
    Rule(
        ("lease",),
        ("hostile",),
        ANY,
        Verdict.SAFE,
        "the lease is not authentic: an attacker who can write it can end an epoch, and no more",
    ),
    Rule(
        ("lease",),
        (*BROKEN, "older version", "foreign"),
        ("running follower",),
        Verdict.WORKS,
        "a follower goes by the chain",
    ),
    Rule(
        ("lease",),
        (*BROKEN, "older version"),
        ("running writer",),
        Verdict.WORKS,
        "it puts its lease back: the chain ends with what it wrote, so no other host has written",
    ),
    Rule(
        ("lease",),
        ("foreign",),
        ("running writer",),
        Verdict.STOPS,
        "another lease instead of its own may be of a host that writes",
    ),
    Rule(
        ("lease",),
        BROKEN,
        ("fsck -n",),
        Verdict.FOUND,
        "the lease is read first",
    ),
    Rule(
        ("lease",),
        BROKEN,
        FSCK,
        Verdict.REPAIRED,
        "epochs and the newest image can be found from the other objects",
    ),
    Rule(
        ("lease",),
        BROKEN,
        ("mount", "mount, local state", "promote", "rollback", "reclaim"),
        Verdict.REFUSED,
        "without a lease nothing says which epoch is the newest; fsck -y makes one",
    ),
    Rule(
        ("lease",),
        ("older version",),
        (*WRITING, "promote", "fsck -y", "fsck -y --deep"),
        Verdict.HELD,
        "an older lease may say that its holder is not done",
    ),
    Rule(
        ("last changelog",),
        ("missing",),
        ("mount, local state",),
        Verdict.REFUSED,
        "the bucket may have been put back on purpose; fsck -y on this host mends it",
    ),
    Rule(
        ANY,
        ANY,
        ("fsck --rebuild -y",),
        Verdict.REFUSED,
        "an image can be restored, so no metadata may be abandoned for packs alone",
    ),
    Rule(
        ANY,
        ANY,
        ("mount -o ro,at=",),
        Verdict.POINTS,
        "the past never depends on what came after it",
    ),
    Rule(
        BY_METADATA,
        ANY,
        (*READING, "mount", "reclaim"),
        Verdict.BY_WAY,
        "only state that is complete is shown as the present",
    ),
    Rule(
        ANY,
        ANY,
        ("fsck -n",),
        Verdict.FOUND,
        "it reads what the present needs; --deep reads everything",
    ),
    Rule(
        ANY,
        ANY,
        FSCK,
        Verdict.REPAIRED,
        "what is intact anywhere is used: levels, older images, the local state",
    ),
    Rule(
        ANY,
        ANY,
        ANY,
        Verdict.WORKS,
        "what this entrance needs is intact, or in the local state",
    ),
)


def rule_of(kind: str, damage: str, entrance: str, *, encrypted: bool) -> Rule:
    """Return the rule of one cell."""
    return next(rule for rule in RULES if rule.covers(kind, damage, entrance, encrypted=encrypted))


class Coordinates(NamedTuple):
    """The coordinates of a cell."""

    kind: str
    damage: str
    entrance: str
    encrypted: bool

    @override
    def __str__(self) -> str:
        how = "encrypted" if self.encrypted else "plain"
        return f"{self.kind} × {self.damage} × {self.entrance} ({how})"

    @property
    def rule(self) -> Rule:
        """Return what is expected of it."""
        return rule_of(self.kind, self.damage, self.entrance, encrypted=self.encrypted)


def all_cells() -> list[Coordinates]:
    """Return every cell, in order."""
    return [
        Coordinates(kind, damage, entrance, encrypted)
        for kind in KINDS
        for damage in DAMAGES
        for entrance in ENTRANCES
        for encrypted in (False, True)
        if entrance != "passphrase" or encrypted
    ]
