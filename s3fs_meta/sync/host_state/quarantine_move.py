"""Moving the local state to a quarantine directory, so that an interrupted move can be resumed.

Owns: the order of the steps, and the decision between finishing and undoing an interrupted move.
Does not know: why a state is quarantined, the lock of the state directory.
Keeps: on a disk with hard links, one of the two directories contains the database, its logs and the
block files at any time. The database and its logs first get a second name in the quarantine
directory. Then one rename moves all block files. A move that was interrupted before this rename is
undone; after it, the move is finished. On a disk without hard links, the database and its logs are
renamed after the block files. An empty file marks such a move as unfinished, and the next process
that locks the state directory finishes it.
Design: docs/design/durability.md, "At mount".
"""

import errno
import logging
import os
from pathlib import Path
from typing import Final

from s3fs_meta.errors import DatabaseError
from s3fs_meta.hashed_dir import DIRECTORY_MODE, sync_path

_log = logging.getLogger(__name__)

_BLOCKS: Final = "blocks"
# An empty file that marks the move into a quarantine directory as unfinished.
# The next process then resumes the move. Only a move on a disk without hard links needs this mark.
_MARK: Final = "unfinished"
# The logs are removed after the database, so that no database is opened without its logs.
_DATABASE_FILES: Final = ("meta.db", "meta.db-wal", "meta.db-shm", "meta.db-journal")
# Errors of link(2) on a disk without hard links: vfat (EPERM), filesystems in user space.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP})


def move(state: Path, quarantine: Path) -> None:
    """Durably move the local state to a new quarantine directory. The call blocks.

    Args:
        state: the locked state directory, whose database no process has open.
        quarantine: the quarantine directory in *state*, which must not exist.

    Raises:
        DatabaseError: the disk is full or failed; no file is lost, and the next process that locks
            *state* resumes the move.
    """
    try:
        (state / _BLOCKS).mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        quarantine.mkdir(mode=DIRECTORY_MODE)
        try:
            _link(state, quarantine)
        except BaseException:
            _undo(state, quarantine)
            raise
        (state / _BLOCKS).rename(quarantine / _BLOCKS)
        _finish(state, quarantine)
    except OSError as exc:
        raise DatabaseError(
            f"cannot quarantine the local state in {str(quarantine)!r}: {exc.strerror}; nothing was lost"
        ) from exc


def resume(state: Path, quarantines: str) -> None:
    """Finish or undo a move that was interrupted. The call blocks.

    Args:
        state: the locked state directory.
        quarantines: the glob pattern of the quarantine directories in *state*.

    Raises:
        OSError: the disk failed; the next call continues.
    """
    for quarantine in sorted(state.glob(quarantines)):
        if quarantine.is_symlink() or not quarantine.is_dir():
            continue
        if _is_used_since(state, quarantine):
            _unmark(quarantine)
        elif not _is_interrupted(state, quarantine):
            if not any(quarantine.iterdir()):  # interrupted before a file was moved
                quarantine.rmdir()
        elif (quarantine / _BLOCKS).exists():
            _finish(state, quarantine)
            _log.warning(
                "the local state is quarantined in %s: the process that quarantined it was"
                " interrupted; s3fs-meta recover-state copies files out of it",
                quarantine,
            )
        else:
            _undo(state, quarantine)


def _link(state: Path, quarantine: Path) -> None:
    """Durably give the database and its logs a second name in the quarantine directory.

    On a disk without hard links, mark the quarantine directory instead.
    """
    for name in _DATABASE_FILES:
        if (state / name).exists():
            try:
                os.link(state / name, quarantine / name, follow_symlinks=False)
            except OSError as exc:
                if exc.errno not in _NO_LINKS:
                    raise
                (quarantine / _MARK).touch()
                break  # instead of linking the files, ``_finish`` renames them
    sync_path(quarantine)
    sync_path(state)


def _finish(state: Path, quarantine: Path) -> None:
    """Remove the database from the state directory once the block files are durably moved."""
    sync_path(quarantine)
    sync_path(state)
    for name in _DATABASE_FILES:
        if _is_same(state / name, quarantine / name):
            (state / name).unlink()
        elif (state / name).exists() and not (quarantine / name).exists():
            (state / name).rename(quarantine / name)
    sync_path(quarantine)
    sync_path(state)
    _unmark(quarantine)


def _unmark(quarantine: Path) -> None:
    """Durably remove the mark, if it exists, so that no files of a later database are moved."""
    if (quarantine / _MARK).exists():
        (quarantine / _MARK).unlink()
        sync_path(quarantine)


def _undo(state: Path, quarantine: Path) -> None:
    """Remove the second names of the database and its logs, and the quarantine directory."""
    for name in _DATABASE_FILES:
        if _is_same(state / name, quarantine / name):
            (quarantine / name).unlink()
    if (quarantine / _MARK).exists():
        (quarantine / _MARK).unlink()
    quarantine.rmdir()
    sync_path(state)


def _is_interrupted(state: Path, quarantine: Path) -> bool:
    """Return whether the move into a quarantine directory was interrupted."""
    is_marked = (quarantine / _MARK).exists()
    return is_marked or any(_is_same(state / name, quarantine / name) for name in _DATABASE_FILES)


def _is_used_since(state: Path, quarantine: Path) -> bool:
    """Return whether a process has used the state directory since a marked move was interrupted.

    Older program versions ignore the mark, and every use creates the directory of the block files
    again. The files in *state* then belong to a later database.
    """
    return all(
        path.exists() for path in (quarantine / _MARK, quarantine / _BLOCKS, state / _BLOCKS)
    )


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two paths are names of the same file."""
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False
