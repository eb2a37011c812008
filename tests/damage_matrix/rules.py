"""The expected result of each cell of the damage matrix, as a table of rules with reasons.

For each object, damage and operation, the first rule that covers them applies. The oracle computes
how much data may be lost, and if the current state is reachable.
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
ALL_IMAGES: Final = (
    "all manifests",
    "all images",
    "all images, start of the chain",
    "all images, a pack",
)
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
    "pack of earlier points",
)


class Verdict(enum.Enum):
    """The kind of result that a rule requires."""

    WORKS = "succeeds"
    BY_WAY = (
        "succeeds if intact objects lead to the current state; otherwise fails, names the object"
        " and advises fsck -y"
    )
    POINTS = (
        "succeeds, with all content, for exactly the points in time to which intact objects lead"
    )
    FOUND = (
        "exits with 4 if the current state or its content is damaged, otherwise with 0 or 4;"
        " changes nothing"
    )
    REPAIRED = (
        "succeeds; after keep --drop of points that need lost objects, a second run finds no error,"
        " and another host has all remaining content"
    )
    REFUSED = "is refused with advice, and changes nothing"
    HELD = "is refused because another host may hold the lease, with the advice --takeover"
    REPORTED = (
        "exits with 4 until keep --drop drops the point, names the object and does not change the"
        " object"
    )
    REBUILT = "restores all remaining content, and the newest names to which intact objects lead"
    STOPS = "uploads nothing more, keeps unshipped data on this host, and reports it"
    SAFE = "does not crash or hang, uses bounded memory, and keeps intact objects"


class Rule(NamedTuple):
    """The expected result for some cells in the damage matrix, with the reason."""

    kinds: tuple[str, ...]
    damages: tuple[str, ...]
    entrances: tuple[str, ...]
    verdict: Verdict
    why: str
    encrypted: bool | None = None  # None if the rule applies to plain and to encrypted filesystems.

    def covers(self, kind: str, damage: str, entrance: str, *, encrypted: bool) -> bool:
        """Return whether the rule applies to a cell of the damage matrix."""
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
        "anyone who can write to the bucket of a plain filesystem can forge any state",
        encrypted=False,
    ),
    Rule(
        SUPERBLOCKS,
        ANY,
        MOUNTED,
        Verdict.WORKS,
        "the mount has the keys in memory",
    ),
    Rule(
        ("both superblocks",),
        ("hostile",),
        ("fsck -y --deep, local state",),
        Verdict.REPAIRED,
        "this host has an authentic copy of the superblock",
        encrypted=True,
    ),
    Rule(
        ("both superblocks",),
        ("hostile",),
        ("mount, local state",),
        Verdict.REFUSED,
        "this host has recorded that the filesystem is encrypted",
        encrypted=True,
    ),
    Rule(
        ("both superblocks",),
        ("hostile",),
        ANY,
        Verdict.REFUSED,
        "a passphrase is given, so a superblock without encryption must be forged",
        encrypted=True,
    ),
    Rule(
        ("both superblocks",),
        ("older version",),
        ("mount, local state",),
        Verdict.REFUSED,
        "this host has a newer superblock, so an attacker may have restored an old one",
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
        "this host can read no copy of the keys, but a host that mounted the filesystem has one",
    ),
    Rule(
        ("all manifests",),
        ANY,
        ("fsck --rebuild -y",),
        Verdict.REBUILT,
        "the chain leads from its first changelog to the current state; without that changelog, the"
        " keys of image pieces give the order that a manifest would give",
    ),
    Rule(
        ("all images",),
        ANY,
        ("fsck --rebuild -y",),
        Verdict.REBUILT,
        "the chain leads from its first changelog to the current state",
    ),
    Rule(
        ("all images, a pack",),
        ANY,
        ("fsck --rebuild -y",),
        Verdict.REBUILT,
        "the names come from the chain, and a damaged pack loses only its own content",
    ),
    Rule(
        ("all images, start of the chain",),
        ANY,
        ("fsck --rebuild -y",),
        Verdict.REBUILT,
        "packs contain the content of files, but no names, so the files are restored in lost+found",
    ),
    Rule(
        ALL_IMAGES,
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
        "without an image no state can be restored; a host with local state has everything",
    ),
    Rule(
        ("lease",),
        ("hostile",),
        ANY,
        Verdict.SAFE,
        "the lease is not authenticated: by writing it, an attacker can only end an epoch",
    ),
    Rule(
        ("lease",),
        (*BROKEN, "older version", "foreign"),
        ("running follower",),
        Verdict.WORKS,
        "a follower reads the chain, and does not need the lease",
    ),
    Rule(
        ("lease",),
        (*BROKEN, "older version"),
        ("running writer",),
        Verdict.WORKS,
        "the writer uploads its lease again, because no other host has written since",
    ),
    Rule(
        ("lease",),
        ("foreign",),
        ("running writer",),
        Verdict.STOPS,
        "another host may have acquired the other lease and be the writer",
    ),
    Rule(
        ("lease",),
        BROKEN,
        ("fsck -n",),
        Verdict.FOUND,
        "fsck reads the lease first",
    ),
    Rule(
        ("lease",),
        BROKEN,
        FSCK,
        Verdict.REPAIRED,
        "fsck computes the epoch and the newest image from the other objects",
    ),
    Rule(
        ("lease",),
        BROKEN,
        ("mount", "mount, local state", "promote", "rollback", "reclaim"),
        Verdict.REFUSED,
        "without a lease the newest epoch is unknown; fsck -y creates a lease",
    ),
    Rule(
        ("lease",),
        ("older version",),
        (*WRITING, "promote", "fsck -y", "fsck -y --deep"),
        Verdict.HELD,
        "an older lease may be one that was not released yet",
    ),
    Rule(
        ("kept point",),
        ("empty", "truncated", "one bit", "different object of its kind", "foreign", "oversized"),
        FSCK,
        Verdict.REPORTED,
        "only a copy of the object has the point's name and list of needed objects, so reclaim"
        " keeps all objects that the point may need",
    ),
    Rule(
        ("last changelog",),
        ("missing",),
        ("mount, local state", "promote"),
        Verdict.REFUSED,
        "the bucket may be a restored backup; fsck -y on this host repairs it",
    ),
    Rule(
        ANY,
        ANY,
        ("fsck --rebuild -y",),
        Verdict.REFUSED,
        "an image can be restored, so a rebuild from packs would lose metadata",
    ),
    Rule(
        ANY,
        ANY,
        ("mount -o ro,at=",),
        Verdict.POINTS,
        "an earlier point in time does not depend on later objects",
    ),
    Rule(
        BY_METADATA,
        ANY,
        (*READING, "mount", "reclaim"),
        Verdict.BY_WAY,
        "a host shows only a complete state as the current state",
    ),
    Rule(
        ANY,
        ANY,
        ("fsck -n",),
        Verdict.FOUND,
        "fsck -n reads the objects that the current state needs, and only --deep reads all objects",
    ),
    Rule(
        ANY,
        ANY,
        FSCK,
        Verdict.REPAIRED,
        "fsck uses all intact copies: levels, older images and local state",
    ),
    Rule(
        ANY,
        ANY,
        ANY,
        Verdict.WORKS,
        "all objects that the operation needs are intact or in local state",
    ),
)


def rule_of(kind: str, damage: str, entrance: str, *, encrypted: bool) -> Rule:
    """Return the first rule that covers a cell of the damage matrix."""
    return next(rule for rule in RULES if rule.covers(kind, damage, entrance, encrypted=encrypted))


class Coordinates(NamedTuple):
    """One cell of the damage matrix: object, damage, operation, and plain or encrypted."""

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
        """Return the rule that covers this cell of the damage matrix."""
        return rule_of(self.kind, self.damage, self.entrance, encrypted=self.encrypted)


def all_cells() -> list[Coordinates]:
    """Return every cell of the damage matrix."""
    return [
        Coordinates(kind, damage, entrance, encrypted)
        for kind in KINDS
        for damage in DAMAGES
        for entrance in ENTRANCES
        for encrypted in (False, True)
        if entrance != "passphrase" or encrypted
    ]
