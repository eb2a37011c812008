"""Searching the newest state for lost content of a past point in time, by hash.

The rows of a snapshot refer to the packs of its time. If content was moved or written again later,
newer packs also contain it.

Owns: a database of the newest state, restored at the first search, and the search in it.
Does not know: its callers, how a block is fetched.
Keeps: the bucket is not changed. If the newest state cannot be read, every search returns None,
except during a shortage of threads, which proves no loss.
Tasks: ``run`` is one task; any other task may call ``find``, which waits for the restore.
"""

import logging
from pathlib import Path

import trio

from s3fs_meta.background_task import in_thread_or_here
from s3fs_meta.cache.fetching.fetcher import Found
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.errors import S3fsError, ThreadShortageError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import blocks, packs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.state_paths import unfinished
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)

_THROWAWAY = Pragmas(journal_mode="off", synchronous="off")


class NewestState:
    """The newest state of a filesystem, searched for content that an older state has lost."""

    def __init__(
        self, store: ObjectStore, keyring: Keyring, uuid: str, lease: Lease, path: Path
    ) -> None:
        """Create the search; ``run`` restores the database.

        Args:
            path: the file for the restored database; the owner of its directory removes it.
        """
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._lease = lease
        self._path = path
        self._db: Database | None = None
        self._wanted = trio.Event()
        self._tried = trio.Event()
        self._lacks_threads = False

    async def find(self, located: Located) -> Found | None:
        """Return the location of a block's content in the newest state, or None.

        Raises:
            ThreadShortageError: the newest state is not restored yet, because no thread could be
                started.
        """
        if located.hash is None:
            return None
        self._wanted.set()
        await self._tried.wait()
        if self._lacks_threads:
            raise ThreadShortageError
        return None if self._db is None else intact_location(self._db, located)

    async def run(self) -> None:
        """Restore the newest state's database at the first search; keep it open until cancelled.

        Raises:
            ThreadShortageError: no thread could be started; run the task again (``continuing``).
        """
        await self._wanted.wait()
        try:
            await self._restore()
            self._lacks_threads = False
        except ThreadShortageError:
            self._lacks_threads = True
            raise
        except (S3fsError, OSError) as exc:
            _log.warning(
                "cannot search the newest txg for content that the snapshot has lost: %s", exc
            )
        finally:
            self._tried.set()
        try:
            await trio.sleep_forever()
        finally:
            if self._db is not None:
                self._db.close()

    async def _restore(self) -> None:
        head = self._lease.head
        newest = head and head.manifest
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        restorer = Restorer(self._store, self._keyring, self._uuid, no_progress)
        link = await restorer.restore(newest, self._path)
        self._db = await in_thread_or_here(self._open)
        _log.info("searching txg %d for content that the snapshot has lost", link.txg)

    def _open(self) -> Database:
        return Database.open(self._path, _THROWAWAY, read_only=True)


def intact_location(db: Database, located: Located) -> Found | None:
    """Return the location of an intact block in *db* with the same content, or None."""
    row = None if located.hash is None else blocks.intact(db, located.hash)
    if row is None or row.pack is None or row.plain_bytes == 0:
        return None
    if row.plain_bytes != located.plain_bytes:
        return None
    assert row.pack_offset is not None, "a block with a pack has an offset"
    assert row.stored_bytes is not None, "a block with a pack has a length"
    return Found(packs.object_key(db, row.pack), row.pack_offset, row.stored_bytes)


def newest_state(volume: Volume) -> NewestState:
    """Return a search of the newest state; the first search restores a database of this state."""
    path = unfinished(volume.state_dir.tmp, "newest.db")
    return NewestState(volume.store, volume.keyring, volume.uuid, volume.keeper.lease, path)
