"""Pins: the objects older than the retention floor that kept points need.

Owns: the conditions under which garbage collection keeps objects for kept points.
Does not know: listings, rows, deletion (``garbage_search``, ``reclaim``).
Keeps: a kept point needs its image, the changelogs and levels from the image to the point's txg,
and each pack that had live blocks at this txg. If a fact is unknown, an object is pinned rather
than deleted.
Design: docs/design/durability.md, "Kept points".

A pack had live blocks at txg K if it was made before K and its last block died after K. So a point
at txg K needs a pack that died in txg D if K < D and the pack's number is below the point's
``next_pack``.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from s3fs_meta.codec.changelog import NUMBER_MAX
from s3fs_meta.model import Epoch, ObjectKey, PackId, Txg
from s3fs_meta.sync.history.kept.kept_points import KeptPoints

_ANY_PACK = PackId(NUMBER_MAX + 1)
_ANY_EPOCH = Epoch(NUMBER_MAX + 1)


class Renumbered(NamedTuple):
    """Packs that a repair renumbered; the new numbers do not show when the packs were written."""

    txg: Txg  # the txg that contains the repair
    next_pack: PackId  # higher than the number of any renumbered pack


NOTHING_RENUMBERED = Renumbered(Txg(0), PackId(0))


class _Interval(NamedTuple):
    first: Txg
    last: Txg


class KeptPointPins:
    """Decides which objects the kept points of one filesystem need."""

    def __init__(
        self,
        kept: KeptPoints,
        images: Collection[ObjectKey],
        end: Txg,
        renumbered: Renumbered = NOTHING_RENUMBERED,
    ) -> None:
        """Compute which objects the kept points need.

        Args:
            kept: the kept points.
            images: the manifests of images from which a restore can start.
            end: the last txg of the chain. A point after this txg belongs to another history.
            renumbered: packs whose numbers do not show when they were written.
        """
        points = [point for point in kept.points if point.txg <= end]
        unreadable = [one for one in kept.unreadable if one.txg <= end]
        self.manifests = {point.image.key for point in points}
        self.broken = [point for point in points if point.image.key not in images]
        # All objects up to this txg are pinned, because a damaged point may need any of them.
        held = [*(point.txg for point in self.broken), *(one.txg for one in unreadable)]
        self.held_upto = Txg(max(held, default=-1))
        self._intervals = _merged(
            [
                *([_Interval(Txg(0), self.held_upto)] if held else []),
                *(_Interval(point.image_txg, point.txg) for point in points),
            ]
        )
        bounds = sorted(
            [
                *((point.txg, point.next_pack) for point in kept.points),
                *((one.txg, _ANY_PACK) for one in kept.unreadable),
            ]
        )
        self._txgs = [txg for txg, _bound in bounds]
        self._bounds = list(accumulate((bound for _txg, bound in bounds), max))
        self._renumbered = renumbered
        epochs = [*(point.epoch for point in kept.points), *(_ANY_EPOCH for _one in unreadable)]
        self.last_epoch = Epoch(max(epochs, default=-1))

    @property
    def intervals(self) -> frozenset[tuple[Txg, Txg]]:
        """Return the first and last txg of each run of pinned changelogs."""
        return frozenset(self._intervals)

    def needs_pack(self, pack: PackId, died: Txg) -> bool:
        """Return whether a kept point needs a pack whose last block died in the txg *died*."""
        # number of kept points older than the txg in which the pack died
        before = bisect_left(self._txgs, died)
        if before and pack < self._bounds[before - 1]:
            return True
        is_renumbered = pack < self._renumbered.next_pack
        return is_renumbered and bisect_left(self._txgs, min(died, self._renumbered.txg)) > 0

    def needs_stray_pack(self, epoch: Epoch) -> bool:
        """Return whether a kept point may need a pack that has no row.

        The row may be lost, or the point may belong to txgs that a repair abandoned.
        """
        return epoch <= self.last_epoch

    def needs_changelog(self, txg: Txg) -> bool:
        """Return whether a kept point needs the changelog of a txg and its parts."""
        return self.interval_of(txg) is not None

    def interval_of(self, txg: Txg) -> tuple[Txg, Txg] | None:
        """Return the run of pinned changelogs that contains a txg, or None."""
        at = bisect_right(self._intervals, _Interval(txg, _ANY_TXG)) - 1
        if at < 0 or self._intervals[at].last < txg:
            return None
        return self._intervals[at]

    def needs_level(self, first: Txg, last: Txg) -> bool:
        """Return whether a restore of a kept point may use a level object."""
        interval = self.interval_of(first)
        return interval is not None and interval[0] < first and last <= interval[1]

    def needs_image(self, txg: Txg) -> bool:
        """Return whether a kept point may need an image of a txg."""
        return txg <= self.held_upto


_ANY_TXG = Txg(NUMBER_MAX + 1)


def _merged(intervals: Iterable[_Interval]) -> Sequence[_Interval]:
    """Return the union of intervals, as ascending intervals that do not overlap."""
    merged: list[_Interval] = []
    for one in sorted(intervals):
        if merged and one.first <= merged[-1].last + 1:
            merged[-1] = _Interval(merged[-1].first, max(merged[-1].last, one.last))
        else:
            merged.append(one)
    return merged


NO_PINS = KeptPointPins(KeptPoints(), (), Txg(0))
