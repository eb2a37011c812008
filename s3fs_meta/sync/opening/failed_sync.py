"""Local state of which a sync has failed: it is written again before it is used on the same boot.

Owns: the record of the failure, and writing files again. Does not know: why the disk failed.
Why: after a failed fsync(2) the kernel keeps the pages in memory, counts them as written, and reports
success from then on. So an fsync of the next mount would promise bytes that only the memory has. The
files are replaced by copies, whose syncs are true; bytes written again into the same file would be lost
on ext4, because their blocks still count as unwritten.
After a reboot nothing is written again: the state on the disk is used as after any power loss.
Design: docs/design/durability.md, "From write to fsync".
"""

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio

from s3fs_meta import machine
from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.errors import DatabaseError
from s3fs_meta.hashed_dir import sync_path, write_again
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.local_disk import set_nocow
from s3fs_meta.meta.tables import cached_blocks, local_state
from s3fs_meta.model import BlockId, BlockState
from s3fs_meta.sync.state_dir import StateDir

_log = logging.getLogger(__name__)

# The logs come first: no page of the database may be durable before the log that it came from.
_DATABASE_FILES: Final = ("meta.db-journal", "meta.db-wal", "meta.db")
_ID_BYTES_MAX: Final = 64


def note(state_dir: StateDir) -> None:
    """Record that a sync has failed on this boot. The record need not be durable."""
    try:
        state_dir.failed_sync.write_bytes(machine.this_boot().encode())
    except OSError as exc:
        _log.error(
            "cannot record in %s that a sync failed: %s; reboot before the next mount",
            state_dir.failed_sync,
            exc.strerror,
        )


def note_if_failed(db: Database, state_dir: StateDir) -> None:
    """Record it if a database is about to be closed after its disk failed."""
    if db.disk_failed or (db.wal is not None and db.wal.failure):
        note(state_dir)


def is_noted(state_dir: StateDir) -> bool:
    """Return whether a sync has failed on this boot."""
    try:
        with state_dir.failed_sync.open("rb") as file:
            return file.read(_ID_BYTES_MAX) == machine.this_boot().encode()
    except FileNotFoundError:
        return False


async def write_database_again(state_dir: StateDir) -> None:
    """Write the database again if a sync has failed. No process may have it open.

    Raises:
        DatabaseError: the disk still fails, or is full; no byte has changed.
    """
    if not is_noted(state_dir):
        return
    _log.warning("a sync failed in the last mount: the database is written again")
    await trio.to_thread.run_sync(_drop_reports, state_dir)
    for name in _DATABASE_FILES:
        path = state_dir.path / name
        if path.exists():
            await _in_thread(path, partial(_replace, path, state_dir.tmp / f"again-{name}"))


async def write_blocks_again(state_dir: StateDir, db: Database) -> list[str]:
    """Write all dirty blocks again if a sync has failed, and forget the failure; return notices.

    Cached blocks of the bucket are dropped from memory and become suspect: their files are compared
    with their hashes, as after a power loss.

    Raises:
        DatabaseError: the disk still fails; no byte has changed.
    """
    if not is_noted(state_dir):
        state_dir.failed_sync.unlink(missing_ok=True)
        return []
    files = BlockFiles(state_dir.blocks, state_dir.tmp)
    mine: list[BlockId] = []
    others: list[BlockId] = []
    for block, state, _size in cached_blocks.rows_with_size(db):
        (mine if state in {BlockState.DIRTY, BlockState.SEALED} else others).append(block)
    await _in_thread(state_dir.blocks, partial(files.write_again, mine))
    await trio.to_thread.run_sync(files.drop_pages, others)
    db.begin_local()
    local_state.put(db, "suspect", "1")
    db.commit()
    state_dir.failed_sync.unlink()
    return [
        f"a sync of {state_dir.path} failed in the last mount, so the database and {len(mine)} blocks"
        " that are not in the bucket were written to the disk again; check that disk"
    ]


def _replace(path: Path, copy: Path) -> None:
    write_again(path, copy, set_nocow if path.name == _DATABASE_FILES[-1] else None)
    sync_path(path.parent)


def _drop_reports(state_dir: StateDir) -> None:
    """Make the kernel report errors of the last mount now, and not to a later syncfs(2)."""
    with contextlib.suppress(OSError):
        BlockFiles(state_dir.blocks, state_dir.tmp).sync_everything()


async def _in_thread(path: Path, work: Callable[[], None]) -> None:
    try:
        await trio.to_thread.run_sync(work)
    except OSError as exc:
        raise DatabaseError(
            f"a sync failed in the last mount, and {str(exc.filename or path)!r} cannot be written to"
            f" the disk again: {exc.strerror}; nothing was changed, and until a reboot the memory of"
            " this machine may have the only copy: free space on the disk or repair it, or copy the"
            " directory to another disk"
        ) from exc
