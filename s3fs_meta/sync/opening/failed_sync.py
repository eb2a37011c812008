"""Writing the local state again after a sync of its files failed, unless the machine has rebooted.

Owns: writing files again. Does not know: why the disk failed, and how the failure is recorded
(``sync_failures``).
Why: after a failed fsync(2) the kernel marks the pages as clean, and later syncs report success for
bytes that are only in memory. So the files are replaced by copies. Rewriting a file in place is not
enough: ext4 still marks its blocks as unwritten, and would lose the bytes.
Keeps: reading bytes that are known to be lost fails with EIO (``cache.files.lost_pages``). After a
reboot nothing is written again, and the disk is used as after a power loss.
Design: docs/design/durability.md, "From write to fsync".
"""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from s3fs_meta import sync_failures
from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.counted import counted
from s3fs_meta.errors import DatabaseError
from s3fs_meta.hashed_dir import sync_path, write_again
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.local_disk import set_nocow
from s3fs_meta.meta.tables import block_origins, cached_blocks, local_state
from s3fs_meta.model import BlockId, BlockState
from s3fs_meta.state_paths import unfinished
from s3fs_meta.sync.host_state.state_dir import StateDir

_log = logging.getLogger(__name__)

# The logs come before the database, because a log must be durable before the pages in it are.
_DATABASE_FILES: Final = ("meta.db-journal", "meta.db-wal", "meta.db")


async def write_database_again(state_dir: StateDir) -> None:
    """Replace the database files with synced copies, if an earlier mount recorded a failed sync.

    No process may have the database open. If no failure is recorded, prepare the file that will
    record the next failed sync.

    Raises:
        DatabaseError: the disk still fails, or is full; the content of the files is unchanged.
    """
    if not sync_failures.is_noted(state_dir.path):
        sync_failures.prepare(state_dir.path)
        return
    _log.warning(
        "fsync of the local state failed in the last mount, so the database files are written to"
        " the disk again"
    )
    await in_thread(_drop_reports, state_dir)
    for name in _DATABASE_FILES:
        path = state_dir.path / name
        if path.exists():
            await _in_thread(
                path, partial(_replace, path, unfinished(state_dir.tmp, f"again-{name}"))
            )


async def write_blocks_again(state_dir: StateDir, db: Database | None) -> list[str]:
    """If a failed sync is recorded, write all dirty blocks again and clear the record.

    Deleted blocks that may be needed to restore a dirty block are also written again. Uploaded
    blocks are dropped from memory and become suspect: their content is checked against their
    hashes, as after a power loss. Returns notices for the user.

    Args:
        state_dir: the locked state directory.
        db: the database in *state_dir*; None if it cannot be read, so that any block may be dirty.

    Raises:
        DatabaseError: the disk still fails, or is full; no readable content was lost.
    """
    if not sync_failures.is_noted(state_dir.path):
        return []
    files = BlockFiles(state_dir.blocks, state_dir.tmp)
    mine: list[BlockId] = []
    others: list[BlockId] = []
    tails: dict[BlockId, int] = {}
    if db is None:
        mine = await in_thread(lambda: sorted(files.numbers()))
    else:
        tails = {tail.block: tail.synced_bytes for tail in cached_blocks.unsynced_tails(db)}
        origins = block_origins.origins_not_uploaded(db)
        for block, state, _size in cached_blocks.rows_with_size(db):
            is_origin = state is BlockState.DOOMED and block in origins
            if is_origin:  # recovery may restore an unsynced block that was copied from this one
                tails[block] = cached_blocks.synced_bytes(db, block)
            is_mine = is_origin or state in {BlockState.DIRTY, BlockState.SEALED}
            (mine if is_mine else others).append(block)
    await _in_thread(state_dir.blocks, partial(files.write_again, mine, tails))
    await in_thread(files.drop_pages, others)
    if db is not None:
        db.begin_local()
        local_state.put(db, "suspect", "1")
        db.commit()
    sync_failures.forget(state_dir.path)
    return [
        f"fsync of {state_dir.path} failed in the last mount, so the database and"
        f" {counted(len(mine), 'block')} not in the bucket were written to the disk again;"
        " check that disk"
    ]


def _replace(path: Path, copy: Path) -> None:
    write_again(path, copy, set_nocow if path.name == _DATABASE_FILES[-1] else None)
    sync_path(path.parent)


def _drop_reports(state_dir: StateDir) -> None:
    """Make the kernel report errors from the last mount now, not in a later syncfs(2)."""
    with contextlib.suppress(OSError):
        BlockFiles(state_dir.blocks, state_dir.tmp).sync_everything()


async def _in_thread(path: Path, work: Callable[[], None]) -> None:
    try:
        await in_thread(work)
    except OSError as exc:
        raise DatabaseError(
            "fsync of the local state failed in the last mount, and"
            f" {str(exc.filename or path)!r} cannot be written to the disk again: {exc.strerror};"
            " no readable content was lost, and the next mount repeats this. Until a reboot, the"
            " memory of this machine may have the only copy: free space on the disk, repair the"
            " disk, or copy the directory to another disk"
        ) from exc
