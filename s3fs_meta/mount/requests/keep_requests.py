"""The client side of requests to a running mount about kept points.

Owns: the control commands about kept points, and the JSON form of a kept point. Does not know:
how points are kept (``keep_handlers``, ``sync.administration.keeping``).

    keep       {"name": text, "at": text or null, "auto": bool} → {"point": point}, with progress
    keep_drop  {"names": [text]} → {"objects": number}
    keep_list  {} → {"points": [point], "unreadable": [{"key", "txg", "why"}],
               "unreadable_count": number, "held_bytes": number}

At most KEPT_FAULTS_MAX unreadable points are listed; unreadable_count counts all of them.
A point is {"name", "key", "txg", "created_ns", "kept_ns", "auto", "alone_bytes": number or null}.
"""

from collections.abc import Sequence
from typing import Any, Final

from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.console.ui import Front
from s3fs_meta.limits import KEPT_FAULTS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import Txg
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import ask
from s3fs_meta.sync.history.kept import kept_costs
from s3fs_meta.sync.history.kept.kept_points import KeptPoints

KEEP: Final = "keep"
DROP: Final = "keep_drop"
LIST: Final = "keep_list"


async def request_keep(
    place: Target, front: Front, name: str, at: str | None, *, auto: bool
) -> dict[str, Any]:
    """Make a mount keep a point in time.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the point was not kept, or the store failed and the point may exist anyway.
    """
    return await ask(place, KEEP, {"name": name, "at": at, "auto": auto}, front)


async def request_drop(place: Target, names: Sequence[str]) -> dict[str, Any]:
    """Make a mount drop kept points. Raises NotMountedError, ControlError."""
    return await ask(place, DROP, {"names": list(names)})


async def request_list(place: Target) -> dict[str, Any]:
    """Return the kept points of a mount. Raises NotMountedError, ControlError."""
    return await ask(place, LIST)


def message_of(point: KeptPoint, alone_bytes: int | None = None) -> dict[str, Any]:
    """Return a kept point as a JSON object."""
    return {
        "name": point.name,
        "key": point.key,
        "txg": point.txg,
        "created_ns": point.created_ns,
        "kept_ns": point.kept_ns,
        "auto": point.auto,
        "alone_bytes": alone_bytes,
    }


async def listed(
    kept: KeptPoints, db: Database | None, floor: Txg, *, unreadable_max: int = KEPT_FAULTS_MAX
) -> dict[str, Any]:
    """Return kept points as a JSON object.

    Args:
        kept: the kept points.
        db: the database of the present state; None leaves the costs of the points unknown.
        floor: the retention floor.
        unreadable_max: the number of unreadable points to list.
    """
    costs = None if db is None else await kept_costs.costs_of(db, kept.points, floor)
    return {
        "points": [
            message_of(point, None if costs is None else costs.alone[point.key])
            for point in kept.points
        ],
        "unreadable": [one._asdict() for one in kept.unreadable[:unreadable_max]],
        "unreadable_count": len(kept.unreadable),
        "held_bytes": None if costs is None else costs.total,
    }
