"""Moving the local state to a quarantine directory, so that an interrupted move can be resumed.

Owns: the order of the steps, and the decision between finishing and undoing an interrupted move.
Does not know: why a state is quarantined, the lock of the state directory.
Keeps: on a disk with hard links, one of the two directories contains the database, its logs and the
block files at any time. The database and its logs first get a second name in the quarantine
directory. Then one rename moves all block files. A move that was interrupted before this rename is
undone; after it, the move is finished. On a disk without hard links, the database and its logs are
renamed after the block files. An empty file marks such an unfinished move, which the next process
that locks the state finishes.
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
# An empty file that marks the move into its quarantine directory as unfinished, so that the next
# process resumes the move. Only a move on a disk without hard links needs this mark.
_MARK: Final = "unfinished"
# The logs are removed after the database, so that no database is opened without its logs.
_DATABASE_FILES: Final = ("meta.db", "meta.db-wal", "meta.db-shm", "meta.db-journal")
# Errors of link(2) on a disk without hard links: vfat (EPERM), filesystems in user space.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP})


def move(state: Path, aside: Path) -> None:
    """Durably move the local state to a new quarantine directory. The call blocks.

    Args:
        state: the locked state directory, whose database no process has open.
        aside: the quarantine directory in *state*, which must not exist.

    Raises:
        DatabaseError: the disk is full or failed; no file is lost, and the next process that locks
            *state* resumes the move.
    """
    try:
        (state / _BLOCKS).mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        aside.mkdir(mode=DIRECTORY_MODE)
        try:
            _link(state, aside)
        except BaseException:
            _undo(state, aside)
            raise
        (state / _BLOCKS).rename(aside / _BLOCKS)
        _finish(state, aside)
    except OSError as exc:
        raise DatabaseError(
            f"cannot quarantine the local state in {str(aside)!r}: {exc.strerror}; nothing was lost"
        ) from exc


def resume(state: Path, quarantines: str) -> None:
    """Finish or undo a move that was interrupted. The call blocks.

    Args:
        state: the locked state directory.
        quarantines: the glob pattern of the quarantine directories in *state*.

    Raises:
        OSError: the disk failed; the next call continues.
    """
    for aside in sorted(state.glob(quarantines)):
        if aside.is_symlink() or not aside.is_dir():
            continue
        if _is_used_since(state, aside):
            _unmark(aside)
        elif not _is_interrupted(state, aside):
            if not any(aside.iterdir()):  # interrupted before a file was moved
                aside.rmdir()
        elif (aside / _BLOCKS).exists():
            _finish(state, aside)
            _log.warning(
                "the local state is quarantined in %s: the process that quarantined it was"
                " interrupted; s3fs-meta recover-state copies files out of it",
                aside,
            )
        else:
            _undo(state, aside)


def _link(state: Path, aside: Path) -> None:
    """Durably give the database and its logs a second name in the quarantine directory.

    On a disk without hard links, mark the quarantine directory instead.
    """
    for name in _DATABASE_FILES:
        if (state / name).exists():
            try:
                os.link(state / name, aside / name, follow_symlinks=False)
            except OSError as exc:
                if exc.errno not in _NO_LINKS:
                    raise
                (aside / _MARK).touch()
                break  # instead of linking the files, ``_finish`` renames them
    sync_path(aside)
    sync_path(state)


def _finish(state: Path, aside: Path) -> None:
    """Remove the database from the state directory once the block files are durably moved."""
    sync_path(aside)
    sync_path(state)
    for name in _DATABASE_FILES:
        if _is_same(state / name, aside / name):
            (state / name).unlink()
        elif (state / name).exists() and not (aside / name).exists():
            (state / name).rename(aside / name)
    sync_path(aside)
    sync_path(state)
    _unmark(aside)


def _unmark(aside: Path) -> None:
    """Durably remove the mark, if it exists, so that no files of a later database are moved."""
    if (aside / _MARK).exists():
        (aside / _MARK).unlink()
        sync_path(aside)


def _undo(state: Path, aside: Path) -> None:
    """Remove the second names of the database and its logs, and the quarantine directory."""
    for name in _DATABASE_FILES:
        if _is_same(state / name, aside / name):
            (aside / name).unlink()
    if (aside / _MARK).exists():
        (aside / _MARK).unlink()
    aside.rmdir()
    sync_path(state)


def _is_interrupted(state: Path, aside: Path) -> bool:
    """Return whether the move into a quarantine directory was interrupted."""
    is_marked = (aside / _MARK).exists()
    return is_marked or any(_is_same(state / name, aside / name) for name in _DATABASE_FILES)


def _is_used_since(state: Path, aside: Path) -> bool:
    """Return whether a process has used the state directory since a marked move was interrupted.

    Older program versions ignore the mark, and every use creates the directory of the block files
    again. The files in *state* then belong to a later database.
    """
    return all(path.exists() for path in (aside / _MARK, aside / _BLOCKS, state / _BLOCKS))


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two paths are names of the same file."""
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False
