"""DELETE requests for garbage, some of which the store may refuse permanently.

Owns: which objects the store has refused to delete; finding these objects in a failed request.
Does not know: why an object is garbage. A policy or a lock on one object makes the request for a
thousand objects fail; each half of the objects is then deleted with a separate request.
Keeps: an object that the store refuses to delete does not prevent the deletion of other objects.
After DELETES_REFUSED_MAX such objects in one call, a failed request is not divided any more, so that
a store that refuses every deletion receives few requests. S3 then still deletes the other objects
of the request; all of its objects count as refused until the next attempt, which comes before that
of objects that were refused alone. At most REFUSED_KEYS_MAX refused objects are remembered.
Source: S3 DeleteObjects, "Errors".
"""

import logging
from collections.abc import Callable, Container, Sequence
from typing import Final

from s3fs_meta.cache.slices import slices
from s3fs_meta.errors import (
    CredentialsError,
    PermanentStoreError,
    StoreAccessError,
    UnexpectedStoreError,
)
from s3fs_meta.limits import DELETE_BATCH_KEYS, DELETES_REFUSED_MAX, REFUSED_KEYS_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ObjectStore

_log = logging.getLogger(__name__)

RANKS: Final = (0, 1, 2)  # the results of ``Deleter.rank``


class Deleter:
    """Deletes objects of one store, and remembers the objects that the store refuses to delete."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.refused: dict[ObjectKey, PermanentStoreError] = {}
        self._refused_alone: set[ObjectKey] = set()  # refused in a request for only one object

    @property
    def refused_alone(self) -> int:
        """Return the number of objects that the store refused in a request of their own."""
        return len(self._refused_alone)

    def rank(self, key: ObjectKey) -> int:
        """Return the order of deletion: 0, or 1 after a refusal, or 2 if it was refused alone."""
        return (key in self.refused) + (key in self._refused_alone)

    async def delete(
        self, keys: Sequence[ObjectKey], deleted: Callable[[int], None]
    ) -> set[ObjectKey]:
        """Delete objects; return the objects that remain.

        The objects are deleted in the order of ``rank``.

        Args:
            deleted: called with the number of objects that a request deleted.

        Raises:
            StoreError: the store is unavailable; some objects may be deleted.
        """
        ordered = sorted(keys, key=self.rank)
        left = set(ordered)
        failures = 0
        waiting = [list(batch) for batch in slices(ordered, DELETE_BATCH_KEYS)][::-1]
        skipped = 0
        while waiting:
            batch = waiting.pop()
            try:
                await self._store.delete(batch)
            except CredentialsError:
                raise
            except (StoreAccessError, UnexpectedStoreError) as exc:
                if failures >= DELETES_REFUSED_MAX:
                    skipped += len(batch)
                    if len(self.refused) + len(batch) <= REFUSED_KEYS_MAX:
                        self.refused.update(dict.fromkeys(batch, exc))
                    continue
                if len(batch) > 1:
                    half = len(batch) // 2
                    waiting += [batch[half:], batch[:half]]
                    continue
                failures += 1
                self._note_refused(batch[0], exc)
                continue
            deleted(len(batch))
            left -= set(batch)
            for key in batch:
                self._forget(key)
        if skipped:
            _log.warning(
                "the store refuses to delete many objects, so %d objects may remain until the next"
                " attempt",
                skipped,
            )
        return left

    def _note_refused(self, key: ObjectKey, exc: PermanentStoreError) -> None:
        if key not in self.refused:
            _log.warning("the store refuses to delete an object, will retry: %s", exc)
        self.refused[key] = exc
        self._refused_alone.add(key)

    def forget_except(self, keys: Container[ObjectKey]) -> None:
        """Forget refused objects other than *keys*, because they need not be deleted any more."""
        for key in [one for one in self.refused if one not in keys]:
            self._forget(key)

    def _forget(self, key: ObjectKey) -> None:
        self.refused.pop(key, None)
        self._refused_alone.discard(key)

    def failure(self) -> PermanentStoreError | None:
        """Return the error for an object that the store refused to delete, or None."""
        return next(iter(self.refused.values()), None)
