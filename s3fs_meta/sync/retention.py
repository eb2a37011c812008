"""How far back moments can be had: the retention floor, and the images that stay.

Owns: which txg is as old as the retention, which images a restore of what is retained begins with.
Does not know: rows, deleting.
Keeps: no clock decides what is safe. Times choose a floor between the one that is in force, which
never goes down, and the older of the last IMAGES_KEPT images, which stay whatever a clock says.
Design: docs/design/durability.md, "Retention".
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import IMAGES_KEPT, IMAGES_SPACED, RECLAIM_PROBES_MAX
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync import chain


class Image(NamedTuple):
    """A complete image that belongs to the chain."""

    txg: Txg
    key: ObjectKey  # of its manifest
    created_ns: int
    is_txg: bool = False  # a changelog says that it is its state: no changes lead there


class Moment(NamedTuple):
    """A changelog's time and writer."""

    created_ns: int
    epoch: Epoch


class MomentFinder:
    """Finds txgs by their times, which rise along the chain; remembers what it has read."""

    def __init__(self, store: ObjectStore, keyring: Keyring, uuid: str) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._known: dict[Txg, Moment | None] = {}

    async def newest_before(self, moment_ns: int, low: Txg, high: Txg) -> Txg:
        """Return the newest txg up to *high* that is not younger than a moment, at least *low*.

        A changelog that cannot be read says nothing; more is retained then, never less.
        """
        self._known = {txg: found for txg, found in self._known.items() if txg > low}
        if high > low and await self._is_before(high, moment_ns):
            return high
        while low < high:
            middle = Txg((low + high + 1) // 2)
            probe = await self._readable(middle, high)
            if probe is not None and await self._is_before(probe, moment_ns):
                low = probe
            else:
                high = Txg(middle - 1)
        return low

    async def _is_before(self, txg: Txg, moment_ns: int) -> bool:
        moment = await self.moment(txg)
        return moment is not None and moment.created_ns <= moment_ns

    async def _readable(self, first: Txg, last: Txg) -> Txg | None:
        for number in range(first, min(last, first + RECLAIM_PROBES_MAX) + 1):
            if await self.moment(Txg(number)) is not None:
                return Txg(number)
        return None

    async def moment(self, txg: Txg) -> Moment | None:
        """Return when and by whom a changelog was made, None if it cannot be read.

        Raises:
            NewerFormatError: by a program that may know more than this one.
        """
        if txg not in self._known:
            self._known[txg] = await self._read(txg)
        return self._known[txg]

    async def _read(self, txg: Txg) -> Moment | None:
        try:
            fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            return None
        return Moment(fetched.changelog.created_ns, fetched.changelog.epoch)


def newest(images: Sequence[Image]) -> list[Image]:
    """Return the last images, which stay in any case, the latest first."""
    return sorted(images, reverse=True)[:IMAGES_KEPT]


def base_of(images: Iterable[Image], floor: Txg) -> Image | None:
    """Return the image that a restore of the retention floor begins with, None if there is none."""
    return max((image for image in images if image.txg <= floor), default=None)


def kept(images: Sequence[Image], floor: Txg, retention_ns: int) -> set[ObjectKey]:
    """Return the manifests that stay.

    These are the last ones, the one that the floor needs, those over which no changes lead, and
    between them some that lie apart, so that no moment is far from an image.
    """
    base = base_of(images, floor)
    stay = {image.key for image in newest(images)}
    if base is None:
        return {image.key for image in images}
    stay.add(base.key)
    stay.update(image.key for image in images if image.is_txg and image.txg > base.txg)
    last_ns = base.created_ns
    for image in sorted(images):
        if image.txg > base.txg and image.created_ns - last_ns >= retention_ns // IMAGES_SPACED:
            stay.add(image.key)
            last_ns = image.created_ns
    return stay
