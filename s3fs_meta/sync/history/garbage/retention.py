"""Retention: choosing the floor (the oldest available txg) and the images to keep.

Owns: the floor, the search for the newest txg that is older than the retention, the images kept for
restores. Does not know: rows, deletion (``reclaim``).
Keeps: a wrong clock may shorten the retention, but the last IMAGES_KEPT images are always kept.
Times only select a floor from the present floor to the oldest of these images. The floor is never
lowered. A txg is old only if both its own time and the time of its upload are old.
Design: docs/design/durability.md, "Retention".
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError, ObjectMissingError
from s3fs_meta.limits import (
    IMAGES_KEPT,
    IMAGES_SPACED,
    RECLAIM_PROBES_MAX,
    RETENTION_GAP_S_MAX,
)
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain


class Image(NamedTuple):
    """A complete image whose txg is in the chain."""

    txg: Txg
    key: ObjectKey  # key of the image's manifest
    created_ns: int
    is_txg: bool = False  # True if the txg's changelog is of kind IMAGE and lists no changes


class TxgStamp(NamedTuple):
    """The time and the writer's epoch of a changelog."""

    created_ns: int
    epoch: Epoch
    begins_span: bool = False


class TxgTimes:
    """Finds txgs by their times, which increase within a time span, and caches the times."""

    def __init__(self, store: ObjectStore, keyring: Keyring, uuid: str) -> None:
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._known: dict[Txg, TxgStamp | None] = {}

    async def newest_before(
        self, time_ns: int, low: Txg, high: Txg, images: Iterable[Txg] = ()
    ) -> Txg:
        """Return the newest txg from *low* to *high* that is not later than a time, or *low*.

        The time of an unreadable changelog is unknown, so the result may be an earlier txg. In that
        case more is retained, never less.

        Args:
            images: the txgs that are images, because a time span may start with each image.
        """
        for txg in sorted(images, reverse=True):
            begin = await self.stamp(txg) if low < txg <= high else None
            if begin is not None and begin.begins_span:
                if begin.created_ns <= time_ns:
                    low = txg
                    break
                high = Txg(txg - 1)
        self._known = {txg: found for txg, found in self._known.items() if txg > low}
        if high > low and await self._is_before(high, time_ns):
            return high
        while low < high:
            middle = Txg((low + high + 1) // 2)
            probe = await self._readable(middle, high)
            if probe is not None and await self._is_before(probe, time_ns):
                low = probe
            else:
                high = Txg(middle - 1)
        return low

    async def _is_before(self, txg: Txg, time_ns: int) -> bool:
        stamp = await self.stamp(txg)
        return stamp is not None and stamp.created_ns <= time_ns

    async def _readable(self, first: Txg, last: Txg) -> Txg | None:
        for number in range(first, min(last, first + RECLAIM_PROBES_MAX) + 1):
            if await self.stamp(Txg(number)) is not None:
                return Txg(number)
        return None

    async def stamp(self, txg: Txg) -> TxgStamp | None:
        """Return the time and the epoch of a changelog, or None if it cannot be read.

        Raises:
            NewerFormatError: a newer version of the program wrote the changelog.
        """
        if txg not in self._known:
            self._known[txg] = await self._read(txg)
        return self._known[txg]

    async def _read(self, txg: Txg) -> TxgStamp | None:
        try:
            fetched = await chain.fetch(self._store, self._keyring, self._uuid, txg)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            return None
        changelog = fetched.changelog
        return TxgStamp(changelog.created_ns, changelog.epoch, changelog.begins_span)


class StoredAges:
    """The ages of txgs, according to the times at which their changelogs were stored.

    If the store has its own clock, the times are reliable. In any other store they come from the
    clocks of hosts, which may have been wrong by years. So an age counts at most
    RETENTION_GAP_S_MAX seconds between two txgs. One jump of a clock can then shorten the retention
    by at most that time.
    """

    def __init__(self, store: ObjectStore, now_ns: int) -> None:
        self._store = store
        self._now_ns = now_ns
        self._counted: dict[Txg, int] | None = None

    async def newest(self, age_ns: int, low: Txg, high: Txg, end: Txg) -> Txg:
        """Return the newest txg from *low* to *high* that is at least *age_ns* old, or *low*.

        Args:
            age_ns: the minimum age.
            low: returned if no later txg is that old.
            high: the last txg to consider.
            end: the last txg of the chain.
        """
        if high > low and not self._store.has_own_clock:
            self._counted = await self._count(low, end)
        if high > low and await self._is_old(high, age_ns):
            return high
        while low < high:
            middle = Txg((low + high + 1) // 2)
            if await self._is_old(middle, age_ns):
                low = middle
            else:
                high = Txg(middle - 1)
        return low

    async def _is_old(self, txg: Txg, age_ns: int) -> bool:
        if self._counted is not None:
            return self._counted.get(txg, -1) >= age_ns
        key = changelog_codec.key_of(txg)
        async with aclosing(self._store.list(key)) as listing:
            async for info in listing:
                if info.key == key and info.modified_ns is not None:
                    return self._now_ns - info.modified_ns >= age_ns
        return False

    async def _count(self, low: Txg, end: Txg) -> dict[Txg, int]:
        """Return the ages of the txgs after *low*; limit the time between two txgs."""
        times: list[tuple[Txg, int]] = []
        after = changelog_codec.key_of(low) if low else ""
        async with aclosing(self._store.list(changelog_codec.PREFIX, after=after)) as listing:
            async for info in listing:
                txg = changelog_codec.parse_key(info.key)
                if txg is not None and txg <= end and info.modified_ns is not None:
                    times.append((txg, info.modified_ns))
        ages: dict[Txg, int] = {}
        age_ns, later_ns = 0, self._now_ns
        for txg, modified_ns in sorted(times, reverse=True):
            age_ns += min(max(later_ns - modified_ns, 0), RETENTION_GAP_S_MAX * 1_000_000_000)
            later_ns = modified_ns
            ages[txg] = age_ns
        return ages


def newest(images: Sequence[Image]) -> list[Image]:
    """Return the last IMAGES_KEPT images, which are always retained, latest first."""
    return sorted(images, reverse=True)[:IMAGES_KEPT]


def may_rise(images: Sequence[Image]) -> bool:
    """Return whether IMAGES_KEPT images exist; with fewer images the floor must not rise."""
    return len(newest(images)) == IMAGES_KEPT


async def newest_old(
    finder: TxgTimes,
    store: ObjectStore,
    now_ns: int,
    retention_ns: int,
    images: Sequence[Image],
    low: Txg,
    high: Txg,
) -> Txg:
    """Return the newest txg whose own time and upload time are both older than the retention.

    Args:
        now_ns: the present time.
        low: the present floor; returned if no later txg is older than the retention.
        high: the last txg of the chain.
    """
    spans = [image.txg for image in images if image.is_txg]
    old = await finder.newest_before(now_ns - retention_ns, low, high, spans)
    return await StoredAges(store, now_ns).newest(retention_ns, low, old, high)


def floor_of(images: Sequence[Image], low: Txg, old: Txg) -> Txg:
    """Return the new floor: at least the present one, at most the oldest image that is always kept.

    Args:
        images: at least as many as ``may_rise`` requires.
        low: the present floor.
        old: the newest txg that is older than the retention.
    """
    return max(low, min(old, newest(images)[-1].txg))


def base_of(images: Iterable[Image], floor: Txg) -> Image | None:
    """Return the image from which a restore of the retention floor starts, or None."""
    return max((image for image in images if image.txg <= floor), default=None)


def kept(images: Sequence[Image], floor: Txg, retention_ns: int) -> set[ObjectKey]:
    """Return the manifests of images that must be retained.

    Retained are the newest images, the base image of the floor, and images whose changelogs list no
    changes. Older images are retained at intervals, so that a restore of any retained txg replays
    few changelogs. If no image is old enough to restore the floor, all images are retained.
    """
    base = base_of(images, floor)
    stay = {image.key for image in newest(images)}
    if base is None:
        return {image.key for image in images}
    stay.add(base.key)
    stay.update(image.key for image in images if image.is_txg and image.txg > base.txg)
    last_ns = base.created_ns
    for image in sorted(images):
        # A wrong clock may be fast or slow, so the sign of the difference is ignored.
        apart_ns = abs(image.created_ns - last_ns)
        if image.txg > base.txg and apart_ns >= retention_ns // IMAGES_SPACED:
            stay.add(image.key)
            last_ns = image.created_ns
    return stay
