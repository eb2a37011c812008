"""Kept points in the bucket: listing and reading them.

Owns: the maximum number of kept points, the decision about which objects are kept points. Does not
know: the objects that a point needs (``pins``), the rules for changes (``keeping``).
Keeps: an object that cannot be read now is never treated as missing.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from s3fs_meta.background_task import run_concurrently
from s3fs_meta.codec import kept_point as kept_codec
from s3fs_meta.codec.kept_point import KeptPoint
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, ObjectMissingError, SettingsError
from s3fs_meta.limits import KEPT_FETCHES_MAX, KEPT_POINTS_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore


class UnreadablePoint(NamedTuple):
    """An object that has the key of a kept point but is damaged, foreign or beyond the maximum."""

    key: ObjectKey
    txg: Txg  # the txg that the object's name contains
    why: str


class KeptPoints(NamedTuple):
    """The kept points of a filesystem, oldest first."""

    points: tuple[KeptPoint, ...] = ()
    unreadable: tuple[UnreadablePoint, ...] = ()

    def named(self, name: str) -> list[KeptPoint]:
        """Return the points with a name, latest first; a race between writers may leave two."""
        found = [point for point in self.points if point.name == name]
        return sorted(found, key=lambda point: point.kept_ns, reverse=True)


def no_such_point(name: str) -> str:
    """Return the error message for a name that no kept point has."""
    return (
        f"{name!r} is not a point in time: there is no kept point of this name, s3fs-meta keep"
        " --list shows all; a time is written for example as 2026-05-09T14:30, 10m (ten minutes"
        " ago) or txg=42"
    )


class KeptPointReader:
    """Reads the kept points of one filesystem; an unchanged object is read only once."""

    def __init__(self, store: ObjectStore, keyring: Keyring, uuid: str) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._known: dict[ObjectInfo, KeptPoint | UnreadablePoint] = {}

    async def all(self) -> KeptPoints:
        """Return all kept points.

        Raises:
            StoreError: the bucket cannot be listed, or an object cannot be read now.
        """
        infos = await self._listed(lambda _hash: True)
        return await self._read(infos)

    async def find(self, name: str) -> KeptPoint:
        """Return the kept point with a given name.

        Raises:
            SettingsError: no kept point has the name.
            FormatError: the object of the kept point is damaged.
            StoreError: the bucket cannot be read.
        """
        wanted = kept_codec.name_hash(name, self._keyring)
        found = await self._read(await self._listed(lambda name_hash: name_hash == wanted))
        points = found.named(name)
        if points:
            return points[0]
        if found.unreadable:
            raise FormatError(found.unreadable[0].key, found.unreadable[0].why)
        raise SettingsError(no_such_point(name))

    async def _listed(self, wanted: Callable[[str], bool]) -> list[ObjectInfo]:
        found = []
        async with aclosing(self._store.list(kept_codec.PREFIX)) as listing:
            async for info in listing:
                name = kept_codec.parse_key(info.key)
                if name is not None and wanted(name.name_hash):
                    found.append(info)
        return found

    async def _read(self, infos: Sequence[ObjectInfo]) -> KeptPoints:
        """Read the objects of kept points; treat objects beyond the maximum as unreadable."""
        known: dict[ObjectInfo, KeptPoint | UnreadablePoint] = {}
        waiting = iter(infos[:KEPT_POINTS_MAX])

        async def work() -> None:
            for info in waiting:
                found = self._known.get(info) or await self._fetch(info.key)
                if found is not None:
                    known[info] = found

        await run_concurrently([work] * min(KEPT_FETCHES_MAX, len(infos)))
        self._known = known
        points = [one for one in known.values() if isinstance(one, KeptPoint)]
        unreadable = [one for one in known.values() if isinstance(one, UnreadablePoint)]
        beyond = f"there are more than {KEPT_POINTS_MAX} objects of kept points"
        unreadable += [_unreadable(info.key, beyond) for info in infos[KEPT_POINTS_MAX:]]
        return KeptPoints(
            tuple(sorted(points, key=lambda one: (one.txg, one.kept_ns, one.key))),
            tuple(sorted(unreadable)),
        )

    async def _fetch(self, key: ObjectKey) -> KeptPoint | UnreadablePoint | None:
        """Return a kept point or the reason why it is unreadable; None if it was just dropped."""
        try:
            data = (await self._store.get(key, kept_codec.ENCODED_BYTES_MAX)).data
            point = kept_codec.decode(key, data, self._keyring)
        except ObjectMissingError:
            return None
        except FormatError as exc:
            return _unreadable(key, exc.what)
        if point.uuid != self._uuid:
            return _unreadable(key, "the kept point belongs to another filesystem")
        return point


def _unreadable(key: ObjectKey, why: str) -> UnreadablePoint:
    name = kept_codec.parse_key(key)
    assert name is not None, "every listed object must have the key of a kept point"
    return UnreadablePoint(key, name.txg, why)
