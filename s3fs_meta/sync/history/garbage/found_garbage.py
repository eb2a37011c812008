"""The input and the result of a search for garbage.

Owns: the lists of objects by kind, and their totals; the facts about the retained history. Does not
know: the search, the deletion.
"""

from typing import NamedTuple

from s3fs_meta.meta.tables.packs import PackRow
from s3fs_meta.model import Epoch, ObjectKey, PackId, Txg
from s3fs_meta.objects.contract import ObjectInfo
from s3fs_meta.sync.history.kept.pins import NO_PINS, KeptPointPins


class Garbage(NamedTuple):
    """Objects that can be deleted once the retention floor is shipped, in deletion order."""

    floor: Txg
    packs: list[PackRow]  # condemned packs, and packs whose last block died at or before the floor
    orphans: list[ObjectInfo]  # packs of earlier epochs without a row in the database
    manifests: list[ObjectInfo]
    pieces: list[ObjectInfo]
    changelogs: list[ObjectInfo]  # changelog objects and their parts
    levels: list[ObjectInfo]
    history: list[ObjectInfo]  # index objects
    needed_again: set[PackId]  # condemned packs that a kept point or a retained txg needs

    def exclude(self, keys: set[ObjectKey]) -> None:
        """Remove objects from these lists, because the store did not delete them."""
        self.packs[:] = [row for row in self.packs if row.object_key not in keys]
        for objects in (self.manifests, self.pieces, self.changelogs, self.levels, self.history):
            objects[:] = [info for info in objects if info.key not in keys]

    @property
    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the number and the total size of the objects, by kind."""
        found = {"packs": [pack.object_bytes for pack in self.packs]}
        for kind in ("orphans", "manifests", "pieces", "changelogs", "levels", "history"):
            objects: list[ObjectInfo] = getattr(self, kind)
            found[kind] = [one.size_bytes for one in objects]
        return {kind: (len(sizes), sum(sizes)) for kind, sizes in found.items()}

    @property
    def total(self) -> int:
        """Return the number of objects of all kinds."""
        return sum(number for number, _size in self.counts.values())


class RetainedHistory(NamedTuple):
    """The part of the history that is retained."""

    floor: Txg  # the oldest retained txg; unpinned objects that only earlier txgs need are garbage
    floor_epoch: Epoch  # the epoch whose writer shipped the txg *floor*
    end: Txg  # the last txg that is confirmed in the bucket
    retention_ns: int  # how long a point in time is retained
    pins: KeptPointPins = NO_PINS
