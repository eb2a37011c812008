"""The check that a state directory belongs to the caller alone, before anything in it is used.

Owns: the rules of ownership and modes. Does not know: the entries (``state_dir``).
The directory holds names, content and the database of the mount: a user who can plant an entry in
it could make the daemon write to any file that the daemon may write.
Keeps: no symbolic link is followed, and no entry is opened: closing a descriptor of the database
would drop SQLite's locks.
"""

import os
import stat
from pathlib import Path
from typing import Final

from s3fs_meta.errors import SettingsError
from s3fs_meta.hashed_dir import DIRECTORY_MODE

_OF_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_WRITE_OF_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_ENTRY_TYPES: Final = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISSOCK)


def require_private(path: Path) -> None:
    """Refuse a state directory that another user owns, can write, or has an entry in.

    If others can only read it, their access is removed: they cannot have planted an entry.

    Raises:
        SettingsError: it is refused; nothing was changed.
        OSError: it cannot be examined.
    """
    try:
        directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as exc:  # also raised by O_NOFOLLOW with O_DIRECTORY for a link
        raise SettingsError(
            f"the state directory {str(path)!r} is a symbolic link or no directory; remove it, or "
            "choose another with --cachedir"
        ) from exc
    try:
        directory = os.fstat(directory_fd)
        _require_owner(f"the state directory {str(path)!r}", directory)
        if directory.st_mode & _WRITE_OF_OTHERS:
            raise SettingsError(
                f"other users can write to the state directory {str(path)!r} (mode"
                f" {stat.S_IMODE(directory.st_mode):04o}); if you trust its content, run chmod 700"
                " on it"
            )
        is_open = bool(directory.st_mode & _OF_OTHERS)
        for name in os.listdir(directory_fd):
            _require_entry(path, directory_fd, name, is_open=is_open)
        if is_open:
            os.chmod(directory_fd, DIRECTORY_MODE)
    finally:
        os.close(directory_fd)


def _require_entry(path: Path, directory_fd: int, name: str, *, is_open: bool) -> None:
    """Refuse one entry as ``require_private`` does; take the right to write it from others."""
    try:
        entry = os.stat(name, dir_fd=directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return  # another process of this user has just removed it
    what = f"{str(path / name)!r} in the state directory"
    _require_owner(what, entry)
    if not any(is_type(entry.st_mode) for is_type in _ENTRY_TYPES):
        raise SettingsError(
            f"{what} is a symbolic link or a special file; remove it, or choose another directory "
            "with --cachedir"
        )
    if stat.S_ISSOCK(entry.st_mode) or not entry.st_mode & _WRITE_OF_OTHERS:
        return
    mode = stat.S_IMODE(entry.st_mode)
    if is_open:
        raise SettingsError(
            f"other users can write to {what} (mode {mode:04o}); if you trust its content, run "
            "chmod go-w on it"
        )
    os.chmod(name, mode & ~_WRITE_OF_OTHERS, dir_fd=directory_fd)


def _require_owner(what: str, found: os.stat_result) -> None:
    uid = os.geteuid()
    if found.st_uid != uid:
        raise SettingsError(
            f"{what} belongs to user {found.st_uid}, not to user {uid} who runs this; run it as "
            "that user, or choose another directory with --cachedir"
        )
