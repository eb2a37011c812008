"""Points in time and names of kept points that this host has seen, for shell completion.

Owns: the file ``points.json`` in the state directory, its format and bounds, the choice of points
in it, and when a mount saves it. Does not know: which points the bucket still has.
Keeps: the file is replaced atomically, by the mount that uses the state directory. If the file is
damaged, only its points are lost. A file of a newer version is not changed.
Tasks: ``KnownPoints.run`` is one background task of a mount.
Design: docs/design/format.md, "Known points in time".
"""

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from s3fs_meta.background_task import in_thread_or_here
from s3fs_meta.hashed_dir import replace_durably
from s3fs_meta.limits import (
    KNOWN_NAMES_MAX,
    KNOWN_POINTS_BYTES_MAX,
    KNOWN_POINTS_LATEST,
    KNOWN_POINTS_MAX,
    KNOWN_POINTS_S,
)
from s3fs_meta.model import is_kept_name
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.host_state.json_file import DAMAGED, NewerFileError, number, read_fields

_log = logging.getLogger(__name__)

VERSION: Final = 1
_NAME: Final = "points.json"
_HOUR_NS: Final = 3600 * 10**9
_DAY_NS: Final = 24 * _HOUR_NS
# Pairs (maximum age, time span): up to that age, one point is kept per time span.
_SPANS: Final = ((2 * _DAY_NS, _HOUR_NS), (60 * _DAY_NS, _DAY_NS))
_LONGEST_SPAN_NS: Final = 30 * _DAY_NS


class Point(NamedTuple):
    """The point in time at which a transaction group ends: its txg and its time."""

    txg: int
    time_ns: int  # time of the txg by the writer's clock


class Known(NamedTuple):
    """The known points in time of one filesystem, sorted, and the names of kept points."""

    uuid: str
    points: tuple[Point, ...]
    kept: tuple[str, ...] = ()  # names of kept points, ordered by txg


def read(state: Path) -> Known | None:
    """Return the points in a state directory, or None if it has no valid file. The call blocks.

    Raises:
        NewerFileError: a newer version of the program wrote the file.
        OSError: the file cannot be read.
    """
    try:
        fields = read_fields(state / _NAME, VERSION, KNOWN_POINTS_BYTES_MAX)
        return None if fields is None else _decode(fields)
    except DAMAGED as exc:
        _log.info(
            "the list of known points in time in %s is damaged; starting a new list: %s",
            state,
            exc,
        )
        return None


def _decode(fields: dict[str, Any]) -> Known:
    points = tuple(Point(number(txg), number(time_ns)) for txg, time_ns in fields["points"])
    kept = tuple(_name(name) for name in fields.get("kept", []))
    return Known(str(fields["uuid"]), points[-KNOWN_POINTS_MAX:], kept[-KNOWN_NAMES_MAX:])


def _name(value: Any) -> str:
    if not isinstance(value, str) or not is_kept_name(value):
        raise ValueError(f"a value is not a valid name of a kept point: {value!r}")
    return value


def with_link(known: Known, link: Link) -> Known:
    """Return the known points after adding a txg and removing points that are no longer valid.

    Points after the txg are from another history; points before its floor are not retained.
    """
    older = [one for one in known.points if link.floor <= one.txg < link.txg]
    return known._replace(points=_thinned([*older, Point(link.txg, link.created_ns)]))


def _thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return all recent points, and of older points only the first in each hour, day or 30 days.

    Each span is a multiple of the shorter ones, so the first point of a day is also the first point
    of an hour.
    """
    older, latest = points[:-KNOWN_POINTS_LATEST], points[-KNOWN_POINTS_LATEST:]
    kept: list[Point] = []
    for point in older:
        age_ns = points[-1].time_ns - point.time_ns
        span_ns = next((each for age, each in _SPANS if age_ns <= age), _LONGEST_SPAN_NS)
        if not kept or kept[-1].time_ns // span_ns != point.time_ns // span_ns:
            kept.append(point)
    return (*kept, *latest)[-KNOWN_POINTS_MAX:]


def write(state: Path, known: Known) -> None:
    """Replace the file of known points. The call blocks.

    Raises:
        OSError: the file cannot be written.
    """
    fields = {
        "version": VERSION,
        "uuid": known.uuid,
        "points": [list(one) for one in known.points],
        "kept": list(known.kept),
    }
    replace_durably(state / _NAME, json.dumps(fields).encode("ascii"))


class KnownPoints:
    """The points in time that this mount and earlier mounts have seen."""

    def __init__(
        self,
        state: Path,
        uuid: str,
        link: Callable[[], Link],
        kept: Callable[[], Iterable[str] | None] = lambda: None,
    ) -> None:
        """Create the object with no points; ``save`` reads the file.

        Args:
            state: the state directory of the filesystem.
            uuid: the UUID of the filesystem.
            link: returns the last chain position in the bucket.
            kept: returns the names of the kept points, earliest txg first; None: unknown.
        """
        self._state = state
        self._uuid = uuid
        self._link = link
        self._kept = kept
        self._saved: tuple[Link, tuple[str, ...] | None] | None = None
        self._saving = trio.Lock()

    async def run(self) -> None:
        """Save the current point at regular intervals until cancelled."""
        while True:
            await self.save()
            await trio.sleep(KNOWN_POINTS_S)

    async def save(self) -> None:
        """Save the current point and the names of kept points if they changed; log any failure."""
        async with self._saving:
            link, names = self._link(), self._kept()
            kept = None if names is None else tuple(names)[-KNOWN_NAMES_MAX:]
            if (link, kept) == self._saved or not link.created_ns:
                return
            try:
                await in_thread_or_here(self._add, link, kept)
            except (OSError, NewerFileError) as exc:
                _log.warning(
                    "cannot save the list of known points in time in %s: %s", self._state, exc
                )
            else:
                self._saved = link, kept

    def _add(self, link: Link, kept: tuple[str, ...] | None) -> None:
        known = read(self._state)
        if known is None or known.uuid != self._uuid:
            known = Known(self._uuid, ())
        added = with_link(known, link)
        if kept is not None:
            added = added._replace(kept=kept)
        if added != known:
            write(self._state, added)
