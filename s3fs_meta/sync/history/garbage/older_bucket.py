"""Uploading the local state again after the bucket of a mounted writer was reset to an older copy.

Owns: finding missing packs, and the order of the steps: mark missing packs, upload cached blocks
again, publish the state.
Does not know: how the reset is detected (``chain_watch``), how blocks are healed (``healing``).
Keeps: nothing in the bucket is overwritten or deleted: the txgs of the older copy stay in the
chain.
Design: docs/design/durability.md, "The chain".
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import trio

from s3fs_meta.errors import ObjectMissingError
from s3fs_meta.limits import DELETE_BATCH_KEYS
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import packs
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import ObjectKey, PackId, PackState
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import abandoned_txgs
from s3fs_meta.sync.history.garbage.orphan_packs import groups, number_of_packs
from s3fs_meta.sync.progress import Progress
from s3fs_meta.sync.upload.healing import DamageMarker, Healer

_log = logging.getLogger(__name__)


class Publisher:
    """Publishes the local state as the next txg of a bucket that lost its last txgs."""

    def __init__(
        self,
        db: Database,
        store: ObjectStore,
        marker: DamageMarker,
        healer: Healer,
        publish_as_txg: Callable[[Progress], Awaitable[object]],
    ) -> None:
        self._db = db
        self._store = store
        self._marker = marker
        self._healer = healer
        self._publish_as_txg = publish_as_txg

    async def publish(self, progress: Progress) -> None:
        """Publish an image of the local state as the next txg.

        If the bucket was reset to an older copy, missing packs are marked as damaged first.

        Raises:
            The errors of ``Imager.publish_as_txg``; the publication is retried with the next txg.
        """
        why = abandoned_txgs.wanted(self._db)
        if why is not None:
            _log.warning("the next txg will be a complete image: %s", why)
        if why is not None and abandoned_txgs.is_put_back(why):
            await self._mark_missing()
            await self._healer.heal()
        await self._publish_as_txg(progress)

    async def _mark_missing(self) -> None:
        """Mark and log each pack that has live blocks but is not in the bucket."""
        for pack, key in await self._unlisted():
            try:
                await self._store.get_range(key, 0, 1)
            except ObjectMissingError:
                self._marker.mark(Mark(pack, None), "has been missing since the bucket was reset")

    async def _unlisted(self) -> list[tuple[PackId, ObjectKey]]:
        """Return packs that have live blocks but are in no listing; list one prefix at a time."""
        missing: list[tuple[PackId, ObjectKey]] = []
        for digits in groups(await number_of_packs(self._db)):
            listed = await self._listed(f"pack/{digits}")
            last = PackId(0)
            while rows := packs.keys_after(self._db, last, DELETE_BATCH_KEYS):
                missing += [
                    (pack, key)
                    for pack, key in rows
                    if key.startswith(f"pack/{digits}")
                    and key not in listed
                    and self._is_needed(pack)
                ]
                last = rows[-1][0]
                await trio.lowlevel.checkpoint()
        return missing

    async def _listed(self, prefix: str) -> set[ObjectKey]:
        async with aclosing(self._store.list(prefix)) as listing:
            return {info.key async for info in listing}

    def _is_needed(self, pack: PackId) -> bool:
        row = packs.find(self._db, pack)
        return row is not None and row.live_bytes > 0 and row.state is PackState.STORED
