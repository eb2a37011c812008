"""The cost of kept points: the packs that would be garbage without them.

Owns: the assignment of packs to kept points. Does not know: how kept points are stored, how packs
are deleted.
Tasks: any task; the rows are read in batches.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import trio

from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.limits import DELETE_BATCH_KEYS
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import packs
from s3fs_meta.meta.tables.packs import PackRow
from s3fs_meta.model import ObjectKey, Txg


class Costs(NamedTuple):
    """The total size of packs that are needed by kept points but by no present or retained txg."""

    alone: dict[ObjectKey, int]  # size of the packs that only one point needs, by its key
    total: int  # size of the packs that at least one kept point needs


async def costs_of(db: Database, points: Sequence[KeptPoint], floor: Txg) -> Costs:
    """Return the total size of the packs that only kept points need.

    Args:
        db: the database of the present state.
        points: the kept points.
        floor: the retention floor; packs whose last block died after it are retained in any case.
    """
    ordered = sorted(points, key=lambda point: point.txg)
    txgs = [point.txg for point in ordered]
    bounds = list(accumulate((point.next_pack for point in ordered), max))
    alone = {point.key: 0 for point in ordered}
    total = 0
    after: PackRow | None = None
    while ordered:
        rows = packs.find_dead(db, floor, DELETE_BATCH_KEYS, after)
        for row in rows:
            assert row.died_txg is not None, "the query must return only dead packs"
            if row.pack in db.held_packs:
                continue
            # Kept points after the pack's creation and before its last block died need the pack.
            first, stop = bisect_right(bounds, row.pack), bisect_left(txgs, row.died_txg)
            if first < stop:
                total += row.object_bytes
            if first + 1 == stop:
                alone[ordered[first].key] += row.object_bytes
        if not rows:
            break
        after = rows[-1]
        await trio.lowlevel.checkpoint()
    return Costs(alone, total)
