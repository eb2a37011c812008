"""An overview of a filesystem, read from its bucket alone, because the host may be lost.

Owns: the newest txg, the holder of the lease, the last image, and whether this image and the
changelogs after it are complete.
Does not know: how the facts are shown; local state, except this host's copy of the superblock.
Keeps: nothing is written, and no lease is taken. With the keys, only authentic objects are used;
without them, names and times are unverified. Only fsck examines objects older than the last image.

Requests without faults:
- GET: two each for the superblock and the newest changelog, one each for the lease and the image
- LIST: three, one more per 1,000 changelogs since the image, one more per 1,000 pieces of images
Additional requests after faults:
- GET: two for each unreadable changelog at the end, for at most OVERVIEW_PROBES_MAX changelogs
- LIST: one for each level; one per 1,000 pieces of images if the lease is lost
"""

import itertools
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Manifest
from s3fs_meta.codec.lease import Head, Lease
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    UnfinishedFilesystemError,
)
from s3fs_meta.limits import OVERVIEW_CHANGELOGS_MAX, OVERVIEW_PROBES_MAX, TXG_GAP_MAX
from s3fs_meta.model import Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain, levels
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.history.snapshot_mount import Bucket, read_bucket
from s3fs_meta.sync.lease.keeper import LeaseKeeper
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import peek
from s3fs_meta.sync.superblock.unlocking import Secret

Run = tuple[Txg, Txg]  # first and last txg of a range without a gap


class Newest(NamedTuple):
    """The newest txg that was found, and its time."""

    txg: Txg
    # Time of the cut by the writer's clock; without keys, time of the upload by the store's clock.
    time_ns: int | None


class Overview(NamedTuple):
    """The facts in the overview of a filesystem."""

    superblock: Superblock
    lease: Lease | None  # None if the lease is missing or damaged
    newest: Newest | None  # None if no keys are available and no txg was found
    head: Head | None  # None if no keys are available and the lease is missing or damaged
    # manifest of the last image; None if it is unreadable or no keys are available
    image: Manifest | None
    changelogs: int  # number of changelogs after the last image
    reached: Txg | None  # last restorable txg; None if unknown
    faults: tuple[str, ...]  # one line for each missing or damaged object
    proven: bool  # True if the objects were authenticated with the keys


async def examine(
    store: ObjectStore, remembered: Remembered, secret: Secret, clock: Clock
) -> Overview:
    """Return an overview of a filesystem whose keys are available.

    Raises:
        NewerFormatError: a newer version of the program wrote the newest changelog or the last
            image.
        StoreError: the store cannot be reached.
        The same errors as ``read_bucket``.
    """
    bucket = await read_bucket(store, remembered, secret, clock)
    return await _Examination(bucket).run()


class _Examination:
    """One examination of a bucket whose keys are available."""

    def __init__(self, bucket: Bucket) -> None:
        head = bucket.keeper.lease.head
        if head is None:
            raise UnfinishedFilesystemError(bucket.store.url)
        self._bucket = bucket
        self._store = bucket.store
        self._points = bucket.points
        self._head = head
        self._unreadable: list[Txg] = []  # unreadable txgs, latest first
        self._faults: list[str] = [*bucket.points.notices]

    async def run(self) -> Overview:
        image = await self._image()
        listed = await self._points.txgs_after_head()
        after = [txg for txg in listed if txg > self._head.txg]
        newest = await self._newest(after, image)
        return Overview(
            superblock=self._bucket.superblock,
            lease=None if self._bucket.lease_fault else self._bucket.keeper.lease,
            newest=newest,
            head=self._head,
            image=image,
            changelogs=len(after),
            reached=await self._reached(after),
            faults=tuple(self._faults),
            proven=True,
        )

    async def _image(self) -> Manifest | None:
        """Return the last image; record its missing pieces."""
        head, bucket = self._head, self._bucket
        try:
            manifest = await image_head.load_manifest(self._store, bucket.keyring, head.manifest)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError) as exc:
            self._faults.append(f"the last image: {exc.message}")
            return None
        found = set()
        async with aclosing(self._store.list(image_codec.PREFIX)) as listing:
            async for info in listing:
                found.add(info.key)
        lost = sum(piece.key not in found for piece in manifest.pieces)
        if lost:
            self._faults.append(
                f"the last image: {lost} of its {len(manifest.pieces)} pieces are missing"
            )
        return manifest

    async def _newest(self, after: Sequence[Txg], image: Manifest | None) -> Newest:
        """Return the newest readable txg; record the unreadable changelogs after it as faults.

        At most OVERVIEW_PROBES_MAX changelogs are read; if all are unreadable, the txg before them
        is returned without being read.
        """
        candidates = sorted(after, reverse=True)
        for txg in candidates[:OVERVIEW_PROBES_MAX]:
            link = await self._points.readable(txg)
            if link is not None:
                await self._require_parts(txg)
                return Newest(txg, link.created_ns)
            self._unreadable.append(txg)
            key = changelog_codec.key_of(txg)
            self._faults.append(f"{key!r} cannot be read: {self._points.why_unreadable(txg)}")
        if len(candidates) > OVERVIEW_PROBES_MAX:
            return Newest(candidates[OVERVIEW_PROBES_MAX], None)
        return Newest(self._head.txg, None if image is None else image.created_ns)

    async def _require_parts(self, txg: Txg) -> None:
        """Record the missing parts of a changelog as faults."""
        bucket = self._bucket
        try:
            fetched = await chain.fetch(self._store, bucket.keyring, bucket.uuid, txg)
        # The position of the txg is known from another object, but the changelog is unreadable.
        except (FormatError, ObjectMissingError) as exc:
            self._faults.append(exc.message)
            return
        parts = {part.key for part in fetched.changelog.parts}
        if not parts:
            return
        prefix = f"{changelog_codec.PART_PREFIX}{txg:0{image_codec.TXG_DIGITS}d}-"
        async with aclosing(self._store.list(prefix)) as listing:
            async for info in listing:
                parts.discard(info.key)
        self._faults += [f"{key!r} is missing" for key in sorted(parts)]

    async def _reached(self, after: Sequence[Txg]) -> Txg:
        """Return the last txg that can be restored from the image; record gaps as faults."""
        end = max(after, default=self._head.txg)
        present = set(after) - set(self._unreadable)
        gaps = gaps_between([self._head.txg, *sorted(after)])
        self._faults += [_missing(run) for run in gaps]
        if len(present) == end - self._head.txg:
            return end
        ends = await levels.ends_by_first(self._store, self._bucket.keyring, self._head.txg)
        reached, last = {self._head.txg}, self._head.txg
        levels_end = {one for some in ends.values() for one in some}
        for txg in sorted({self._head.txg, *after, *levels_end}):
            if txg not in reached:
                continue
            last = max(last, txg)
            following = Txg(txg + 1)
            reached |= {following} & present
            reached |= {one for one in ends.get(following, ()) if one <= end}
        return last


def gaps_between(txgs: Sequence[Txg]) -> list[Run]:
    """Return the runs of numbers that are missing between ascending txgs."""
    return [
        (Txg(one + 1), Txg(other - 1)) for one, other in itertools.pairwise(txgs) if other > one + 1
    ]


def _missing(run: Run) -> str:
    first, last = run
    return (
        f"changelog {first} is missing"
        if first == last
        else f"changelogs {first} to {last} are missing"
    )


# --- overview without keys ---------------------------------------------------------------------


async def examine_names(store: ObjectStore, remembered: Remembered, clock: Clock) -> Overview:
    """Return an unverified overview of an encrypted filesystem whose passphrase is unknown.

    Raises:
        NewerFormatError: a newer version of the program wrote the superblock or the lease.
        StoreError: the store cannot be reached.
        The same errors as ``peek``.
    """
    superblock = await peek(store, remembered)
    keeper, faults = LeaseKeeper(store, clock), []
    try:
        lease: Lease | None = await keeper.read()
    except NewerFormatError:
        raise
    except (FormatError, UnfinishedFilesystemError) as exc:
        lease = None
        faults.append(exc.message)
    head = None if lease is None else lease.head
    newest, listed, reached = None, [], None
    if head is not None:
        found = await chain.objects_from(store, head.txg, OVERVIEW_CHANGELOGS_MAX)
        times = {txg: info.modified_ns for txg, info in found}
        listed = _within_reach(head.txg, [txg for txg, _info in found if txg > head.txg])
        end = listed[-1] if listed else head.txg
        newest = Newest(end, times.get(end))
        gaps = gaps_between([head.txg, *listed])
        faults += [_missing(run) for run in gaps]
        reached = None if gaps else end
    return Overview(
        superblock, lease, newest, head, None, len(listed), reached, tuple(faults), proven=False
    )


def _within_reach(head: Txg, txgs: Sequence[Txg]) -> list[Txg]:
    """Return the txgs before the first long gap; without keys, no later txg can be verified."""
    found: list[Txg] = []
    for txg in txgs:
        if txg - (found[-1] if found else head) > TXG_GAP_MAX:
            break
        found.append(txg)
    return found
