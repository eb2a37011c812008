"""Quarantine of the last copies that a follower has cached, before it drops its cached blocks.

Owns: a directory ``kept-…`` with these block files and the rows that name them.
Does not know: which blocks are last copies (``sync.last_copies``), what comes after the quarantine.
A follower resyncs after another host's fsck replaced unreadable content by holes, for example. Then
cached blocks of damaged packs may be the last copies of that content. The files get a second name,
since readers of the current txg still use the first.
Keeps: a directory with a database also has all of its block files, durably: a crash before that leaves
block files without a database, and the cache unchanged.
Design: docs/design/durability.md, "At mount".
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio

from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.clock import Clock
from s3fs_meta.errors import DatabaseError
from s3fs_meta.hashed_dir import DIRECTORY_MODE, sync_path
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.tables import cached_blocks
from s3fs_meta.model import BlockId
from s3fs_meta.sync import last_copies
from s3fs_meta.sync.state_dir import StateDir

_log = logging.getLogger(__name__)

# The copy is removed after any failure, and synced as a whole.
_THROWAWAY: Final = Pragmas(journal_mode="off", synchronous="off")


async def quarantine(
    state_dir: StateDir, applier: Database, restored: Path, cache: BlockCache, clock: Clock
) -> None:
    """Quarantine cached blocks that may be the last copies of their content, if there are any.

    Args:
        state_dir: of the follower.
        applier: has the rows of the cached blocks.
        restored: the database that replaces it.
        cache: of the mount; it is not changed.
        clock: for the name of the directory.

    Raises:
        NoSpaceLeftError, DatabaseError: the disk refused; nothing was quarantined.
    """
    held = set(cache.index.blocks())
    last = await trio.to_thread.run_sync(_last_copies, applier, restored, held)
    if not last:
        return
    kept, copy = state_dir.quarantine(str(clock.now_ns())), state_dir.tmp / "kept.db"
    with cache.disk.holding(copy, applier.size_bytes):
        await trio.to_thread.run_sync(_fill, state_dir, applier, last, copy, kept)
    _log.warning(
        "%d cached blocks are quarantined in %s: the bucket has lost or damaged their packs, so they"
        " may be the last copies; s3fs-meta recover-state --everything copies files out of it",
        len(last),
        kept,
    )


def _last_copies(applier: Database, restored: Path, held: set[BlockId]) -> list[BlockId]:
    newest = Database.open(restored, applier.pragmas)  # a read-only connection would leave its log
    try:
        return last_copies.among(applier, newest, held)
    finally:
        newest.close()


def _fill(
    state_dir: StateDir, applier: Database, last: Sequence[BlockId], copy: Path, kept: Path
) -> None:
    """Make the directory; leave nothing after an error. In a thread."""
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
            raise DatabaseError(  # noqa: ASYNC104 - no cancellation
                f"cannot quarantine cached blocks in {str(kept)!r}: {exc.strerror}"
            ) from exc
        raise


def _copy_rows(applier: Database, last: Sequence[BlockId], copy: Path) -> None:
    """Copy the database durably; of the cached blocks it names only *last*."""
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
