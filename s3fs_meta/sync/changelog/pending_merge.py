"""Merging recorded changes that are not yet shipped, so that few accumulate during an outage.

Owns: when merges run; no request waits for a merge. Does not know: the content of a
changeset, the store.
Keeps: records of a txg that is being shipped are not merged.
Tasks: ``run`` is one background task, which merges records in a thread. Outside WAL mode only the
event loop can read records; it reads at most CHANGELOG_RUN_BYTES at a time.
"""

from collections.abc import Callable

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.limits import CHANGELOG_RUN_BYTES, CONDENSE_INTERVAL_S, CONDENSED_RECORDS_MIN
from s3fs_meta.meta import changesets
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import pending
from s3fs_meta.meta.tables.pending import ChangeRecorder, MergedRecords


class Condenser:
    """Merges the recorded but unshipped changes of one mounted filesystem."""

    def __init__(
        self, db: Database, recorder: ChangeRecorder, frozen_seq: Callable[[], int]
    ) -> None:
        """Create the condenser; ``run`` merges records.

        Args:
            db: the database of the mount.
            recorder: records the changes of *db*.
            frozen_seq: returns the number of the last record that is in a cut txg.
        """
        self._db = db
        self._recorder = recorder
        self._frozen_seq = frozen_seq

    async def run(self) -> None:
        """Merge unshipped records at regular intervals until cancelled."""
        while True:
            await trio.sleep(CONDENSE_INTERVAL_S)
            while await self.condense():
                pass

    async def condense(self, *, records_min: int = CONDENSED_RECORDS_MIN) -> bool:
        """Merge a run of at least *records_min* small records; return False if none was merged."""
        run = self._recorder.small_run(self._frozen_seq(), records_min=records_min)
        if run is None:
            return False
        first, last = run
        self._db.commit()
        merged = await self._merge(first, last)
        if merged is None or merged.last_seq != last or first <= self._frozen_seq():
            return False  # the records were shipped or cut during the merge
        self._db.begin_local()
        self._recorder.replace_run(first, last, merged.changeset)
        return True

    async def _merge(self, first: int, last: int) -> MergedRecords | None:
        if not self._db.pragmas.is_wal:
            waiting = pending.records_of_run(self._db.connection, first, last)
            return await in_thread(_merged, waiting)
        snapshot = self._db.open_snapshot()
        try:
            return await in_thread(
                pending.merged_run, snapshot.connection, first - 1, last, CHANGELOG_RUN_BYTES
            )
        finally:
            snapshot.close()


def _merged(waiting: list[tuple[int, bytes]]) -> MergedRecords | None:
    if not waiting:
        return None
    return MergedRecords(changesets.merge(changeset for _seq, changeset in waiting), waiting[-1][0])
