"""Paths of inodes, read from a snapshot in a thread.

Owns: the snapshot. Does not know: the search for a path (``meta.trees.tree_paths``).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from s3fs_meta.background_task import in_thread
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.trees import tree_paths
from s3fs_meta.model import Ino

_In = TypeVar("_In")
_Out = TypeVar("_Out")


async def path_of(db: Database, ino: Ino) -> bytes | None:
    """Return one path of an inode, without a leading slash, or None if it has no path."""
    return await _read(db, tree_paths.bytes_of, ino)


async def texts_of(db: Database, inos: Sequence[Ino]) -> list[str]:
    """Return one path of each inode for messages; skip inodes without a path."""
    return await _read(db, tree_paths.texts_of, inos)


async def _read(db: Database, read: Callable[..., _Out], wanted: _In) -> _Out:
    db.commit()
    if not db.pragmas.is_wal:  # read without a snapshot, which would copy the database
        return read(db.connection, wanted)
    snapshot = db.open_snapshot()
    try:
        return await in_thread(read, snapshot.connection, wanted)
    finally:
        snapshot.close()
