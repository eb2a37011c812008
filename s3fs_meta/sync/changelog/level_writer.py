"""Creating level objects in a background task of the writer.

Owns: finding missing level objects, and the order in which they are created.
Does not know: how changelogs are merged (``levels``).
Keeps: only confirmed txgs are merged. If changelogs cannot be merged, no level object is created,
because a restore can use the changelogs.
Tasks: ``run`` is one background task.
Design: docs/design/durability.md, "Levels".
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.errors import (
    FormatError,
    ObjectMissingError,
    PreconditionError,
    S3fsError,
)
from s3fs_meta.limits import LEVEL_CHECK_S, LEVEL_FAN_OUT, LEVEL_INPUT_BYTES_MAX
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.mount_state import MountStatus
from s3fs_meta.objects.billing import Cause, part
from s3fs_meta.sync.chain import chain, levels
from s3fs_meta.sync.chain.chain import FetchedChangelog
from s3fs_meta.sync.chain.levels import MergeInput, NotMergedError
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)


class Leveler:
    """Merges the changelogs of one filesystem into levels."""

    def __init__(
        self,
        volume: Volume,
        status: MountStatus,
        hook: Hook,
        read: Callable[[FetchedChangelog], Awaitable[None]],
    ) -> None:
        """Create the leveler; *read* is called with each changelog that is read for a merge."""
        self._store = volume.store
        self._keyring = volume.keyring
        self._keeper = volume.keeper
        self._uuid = volume.uuid
        self._position = volume.position
        self._status = status
        self._hook = hook
        self._read = read
        # Level objects up to this txg exist, or could not be created; None before the first pass.
        self.done: Txg | None = None

    async def run(self) -> None:
        """Merge new txgs into level objects until cancelled."""
        while True:
            await trio.sleep(LEVEL_CHECK_S)
            if not self._status.ships:
                continue
            try:
                await self.make_due()
            except S3fsError as exc:
                _log.info("cannot merge changelogs into level objects, will retry: %s", exc)

    @part(Cause.LEVELS)
    async def make_due(self) -> None:
        """Create the missing level objects up to the last confirmed txg.

        Raises:
            StoreError: the store is unavailable; the next call continues with the same object.
        """
        known: set[ObjectKey] = set()
        if self.done is None:
            head = self._keeper.lease.head
            start = Txg(0) if head is None else head.txg
            ends = await levels.ends_by_first(self._store, self._keyring, start)
            known = {key for some in ends.values() for key in some.values()}
            self.done = start
        end = self._position.link.txg
        first_end = (self.done // LEVEL_FAN_OUT + 1) * LEVEL_FAN_OUT
        for last in range(first_end, end + 1, LEVEL_FAN_OUT):
            for level in level_codec.ends_at(Txg(last)):
                key = level_codec.key_of(level, Txg(last))
                if key not in known and not await self._make(level, Txg(last)):
                    break  # higher levels cannot be made without this level object
            self.done = Txg(last)

    async def _make(self, level: int, last: Txg) -> bool:
        """Create one level object; return whether it is in the bucket now."""
        try:
            pieces = await self._pieces(level, last)
            made = await in_thread(levels.merge, level, self._uuid, pieces)
        except (NotMergedError, FormatError, ObjectMissingError) as exc:
            severity = logging.DEBUG if isinstance(exc, NotMergedError) else logging.INFO
            key = level_codec.key_of(level, last)
            _log.log(severity, "cannot create the level object %s: %s", key, exc)
            return False
        del pieces  # free the memory of the pieces before encoding
        data = await in_thread(level_codec.encode, made, self._keyring)
        with contextlib.suppress(PreconditionError):  # another mount has created the level object
            await self._store.create(made.key, data)
        self._hook("level put")
        return True

    async def _pieces(self, level: int, last: Txg) -> list[MergeInput]:
        """Return the contents of the objects to be merged into a level object.

        Raises:
            NotMergedError, FormatError, ObjectMissingError: one of the objects cannot be merged.
        """
        pieces: list[MergeInput] = []
        size = 0
        step = LEVEL_FAN_OUT ** (level - 1)
        first = level_codec.first_of(level, last)
        for end in range(first + step - 1, last + 1, step):
            piece = await self._piece(level - 1, Txg(end))
            size += levels.size_of(piece.section)
            if size > LEVEL_INPUT_BYTES_MAX:
                raise NotMergedError("the changelogs to merge are too large")
            pieces.append(piece)
        return pieces

    async def _piece(self, level: int, last: Txg) -> MergeInput:
        if level == 0:
            fetched = await chain.fetch(self._store, self._keyring, self._uuid, last)
            await self._read(fetched)
            return levels.piece_of_changelog(fetched)
        key = level_codec.key_of(level, last)
        data = (await self._store.get(key, ENCODED_BYTES_MAX)).data
        found = await in_thread(level_codec.decode, key, data, self._keyring)
        return levels.piece_of_level(found)
