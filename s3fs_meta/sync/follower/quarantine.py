"""Quarantining a follower's cached blocks that may be last copies, before the cache is dropped.

Owns: a directory ``kept-…`` with the quarantined block files and their rows. Does not know: which
blocks are last copies (``sync.last_copies``), what happens after the quarantine.
Example: another host's fsck replaced unreadable content with holes, and only this cache still has
the content. Block files get a second hard link, because readers of the current txg use the first.
Keeps: if a quarantine directory has a database, all of its block files are durable. A crash during
the quarantine changes nothing in the cache. Later writes do not change the quarantined files, because
a block file with several hard links is copied before it is changed (``BlockFiles.take_over``).
Design: docs/design/durability.md, "At mount".
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.clock import Clock
from s3fs_meta.errors import DatabaseError
from s3fs_meta.hashed_dir import DIRECTORY_MODE, sync_path
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.tables import cached_blocks
from s3fs_meta.model import BlockId
from s3fs_meta.state_paths import unfinished
from s3fs_meta.sync import last_copies
from s3fs_meta.sync.host_state.state_dir import StateDir

_log = logging.getLogger(__name__)

# The copied database needs no journal: it is synced when complete, and removed after a failure.
_THROWAWAY: Final = Pragmas(journal_mode="off", synchronous="off")


async def quarantine(
    state_dir: StateDir, applier: Database, restored: Path, cache: BlockCache, clock: Clock
) -> None:
    """Quarantine cached blocks that may be the last copies of their content, if there are any.

    Args:
        state_dir: the state directory of the follower.
        applier: the follower's second connection, with the rows of the cached blocks.
        restored: the database that replaces the current one.
        cache: the cache of the mount, which is not changed.
        clock: the clock for the time in the name of the quarantine directory.

    Raises:
        NoSpaceLeftError, DatabaseError: the disk is full or failed; nothing was quarantined.
    """
    held = set(cache.index.blocks())
    last = await in_thread(_last_copies, applier, restored, held)
    if not last:
        return
    kept, copy = state_dir.quarantine(str(clock.now_ns())), unfinished(state_dir.tmp, "kept.db")
    await cache.disk.make_room(applier.size_bytes)
    with cache.disk.holding(copy, applier.size_bytes):
        await in_thread(_fill, state_dir, applier, last, copy, kept)
    _log.warning(
        "%d cached blocks were quarantined in %s: their packs are lost or damaged in the bucket,"
        " so these may be the last copies; s3fs-meta recover-state --everything reads them",
        len(last),
        kept,
    )


def _last_copies(applier: Database, restored: Path, held: set[BlockId]) -> list[BlockId]:
    # Open the database for writing, because opening it read-only would leave a WAL file.
    newest = Database.open(restored, applier.pragmas)
    try:
        return last_copies.among(applier, newest, held)
    finally:
        newest.close()


def _fill(
    state_dir: StateDir, applier: Database, last: Sequence[BlockId], copy: Path, kept: Path
) -> None:
    """Create the quarantine directory; remove it on error. The call blocks."""
    try:
        _copy_rows(applier, last, copy)
        kept.mkdir(mode=DIRECTORY_MODE)
        files = BlockFiles(state_dir.blocks, state_dir.tmp)
        files.link_to(last, kept / state_dir.blocks.name)
        copy.rename(kept / state_dir.database.name)
        sync_path(kept)
        sync_path(kept.parent)
    except BaseException as exc:
        image_copy.remove(copy)
        shutil.rmtree(kept, ignore_errors=True)
        if isinstance(exc, OSError):
            raise DatabaseError(  # noqa: ASYNC104 - an OSError is not a cancellation
                f"cannot quarantine cached blocks in {str(kept)!r}: {exc.strerror}"
            ) from exc
        raise


def _copy_rows(applier: Database, last: Sequence[BlockId], copy: Path) -> None:
    """Make a durable copy of the database; as cached blocks, it lists only those in *last*."""
    image_copy.remove(copy)
    snapshot = applier.open_snapshot()
    try:
        snapshot.copy_to(copy)
    finally:
        snapshot.close()
    db = Database.open(copy, _THROWAWAY)
    try:
        db.begin_local()
        cached_blocks.replace_all(db, last)
        db.commit()
    finally:
        db.close()
    sync_path(copy)
