"""Packs in the bucket that have no row in the database.

Owns: the search for these packs. Does not know: which rows are garbage (``garbage_search``).
Keeps: an object is returned only if its content proves that this filesystem wrote it. No object is
returned that may belong to a row with a damaged key.
"""

import logging
from collections.abc import Iterable, Set
from contextlib import aclosing
from typing import Final

import trio

from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.limits import DELETE_BATCH_KEYS, RECLAIM_PACK_ROWS
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import packs, properties
from s3fs_meta.model import Epoch, ObjectKey, PackId
from s3fs_meta.objects.contract import ObjectInfo, ObjectStore
from s3fs_meta.sync.history.kept.pins import NO_PINS, KeptPointPins
from s3fs_meta.sync.upload.pack_index import is_ours

_log = logging.getLogger(__name__)
_HEX_DIGITS: Final = 2  # number of hexadecimal digits in the prefix pack/<hh>/ of a pack's key


class OrphanPacks:
    """Finds packs without a row, and remembers the epochs that it has searched."""

    def __init__(self, db: Database, store: ObjectStore, keyring: Keyring) -> None:
        self._db = db
        self._store = store
        self._keyring = keyring
        # All packs of epochs between these two have been compared with the database.
        self._after, self._before = Epoch(-1), Epoch(0)

    async def find(
        self, floor_epoch: Epoch, limit: int, pins: KeptPointPins = NO_PINS
    ) -> list[ObjectInfo]:
        """Return at most *limit* orphan packs of epochs before the floor's epoch.

        An object that has a pack's name but was not written by this filesystem is never returned.
        Packs of later epochs are kept, because quarantined state of a fenced host may refer to
        them. Packs that a rebuild of the metadata could not read are kept forever.

        Raises:
            BadRowError: the key of a row cannot be read, so an object may belong to it.
        """
        is_done = self._before >= floor_epoch and self._after <= pins.last_epoch
        if is_done or limit <= 0 or pins.needs_stray_pack(Epoch(floor_epoch - 1)):
            return []
        found: list[ObjectInfo] = []
        missing: set[int] = set()  # sizes of stored packs whose objects are not listed
        for digits in groups(await number_of_packs(self._db)):
            known = await self._known(digits)
            async with aclosing(self._store.list(f"pack/{digits}")) as listing:
                async for info in listing:
                    is_known = known.pop(info.key, None) is not None
                    epoch = pack_codec.parse_key(info.key)
                    if epoch is None or epoch >= floor_epoch or is_known or len(found) == limit:
                        continue
                    if pins.needs_stray_pack(epoch):
                        continue
                    if await is_ours(self._store, self._keyring, info):
                        found.append(info)
            missing.update(size_bytes for size_bytes in known.values() if size_bytes)
        if not found:
            self._before, self._after = floor_epoch, pins.last_epoch
        return _without_doubtful(found, missing)

    async def _known(self, digits: str) -> dict[ObjectKey, int]:
        """Return the pack keys that the search skips: for a stored pack with its size, otherwise 0.

        A key that is not the key of a pack is damaged; its object may be in any group.
        """
        begin = f"pack/{digits}"
        known = {key: 0 for key in properties.kept_packs(self._db) if key.startswith(begin)}
        last = PackId(0)
        while rows := packs.sizes_after(self._db, last, DELETE_BATCH_KEYS):
            known.update(
                (key, size)
                for _pack, key, size in rows
                if key.startswith(begin) or pack_codec.parse_key(key) is None
            )
            last = rows[-1][0]
            await trio.lowlevel.checkpoint()
        return known


def _without_doubtful(found: list[ObjectInfo], missing: Set[int]) -> list[ObjectInfo]:
    """Remove objects that may belong to a row with a damaged key: a missing pack has their size."""
    doubtful = [info for info in found if info.size_bytes in missing]
    if doubtful:
        _log.error(
            "garbage collection did not delete %s: no row refers to it, but the object of a pack with"
            " the same size is missing, so the key in that pack's row may be damaged; unmount, and"
            " run s3fs-meta fsck -y",
            doubtful[0].key,
        )
    return [info for info in found if info.size_bytes not in missing]


async def number_of_packs(db: Database) -> int:
    """Return the number of packs, which are counted in slices."""
    count = 0
    for within in packs.slices(db):
        count += packs.count(db, within)
        await trio.lowlevel.checkpoint()
    return count


def groups(count: int) -> Iterable[str]:
    """Return prefixes of pack names; each prefix matches at most about RECLAIM_PACK_ROWS packs."""
    digits = 0
    while count > RECLAIM_PACK_ROWS * 16**digits and digits < _HEX_DIGITS:
        digits += 1
    return [f"{number:0{digits}x}" if digits else "" for number in range(16**digits)]
