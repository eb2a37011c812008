"""The mapping of a user's path to a directory entry of a mounted filesystem.

Owns: finding the mount of a path; refusing a path that does not end in the name of an entry, or
that the caller may not read; waiting until programs see a change; the request that removes an
entry.
Does not know: other control requests (``control_api``).
Keeps: no event loop is used, because ``rm`` must start fast.
Symbolic links in a path are followed, except a link at the end of the path, as in rm(1). Commands
that read a tree (``nodes``) also follow a link at the end.
"""

import errno
import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.control import plain_call
from s3fs_meta.errors import ControlError, UsageError
from s3fs_meta.limits import PAST_INO_MIN
from s3fs_meta.model import Ino
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.existing.mount_table import Mounted
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.existing.unanswered import named, of_closed_path, of_dead_path
from s3fs_meta.mount.limits import KERNEL_FORGET_S_MAX
from s3fs_meta.mount_errors import NotMountedError

_POLL_S: Final = 0.05
_WANTED: Final = "paths in a mounted filesystem"
REMOVE: Final = "remove"

EntryPath = Path | str
"""A path as the user gave it. ``Path`` removes a slash or a ``.`` at the end; a text keeps it."""


class Entry(NamedTuple):
    """One directory entry of a mounted filesystem."""

    place: Target
    parent: Ino
    name: bytes
    ino: Ino  # inode number; 0 if the name does not exist
    path: str  # absolute path; no parent directory is a symbolic link


class Node(NamedTuple):
    """A file or directory of a mounted filesystem: its inode number and its path."""

    place: Target
    ino: Ino
    path: str  # absolute path without symbolic links


def nodes(paths: Iterable[Path], cachedir: Path | None) -> list[Node]:
    """Return the files and directories at paths, which must be readable and on one filesystem.

    Symbolic links are followed, even at the end of a path.

    Raises:
        UsageError: a path does not exist, may not be read, is on another filesystem, or shows a
            past point in time, whose content is not in the cache of the mount.
        NotMountedError: a path is not on a filesystem of s3fs-meta.
        SilentDaemonError: the daemon of a path's filesystem does not answer.
    """
    paths = list(paths)
    targets.require_answers(paths)
    mounts = mount_table.read()
    found = [_node(path, mounts, cachedir) for path in paths]
    for one in found[1:]:
        if one.place.state != found[0].place.state:
            raise UsageError(
                f"the path {one.path} is on another filesystem than {found[0].path}; run the"
                " command for each filesystem"
            )
    return found


def _node(path: Path, mounts: list[Mounted], cachedir: Path | None) -> Node:
    try:
        absolute = os.path.realpath(path, strict=True)
        found = os.stat(absolute)
    except OSError as exc:
        raise _unusable(path, exc) from exc
    place = _place(mounts, absolute, found.st_dev, cachedir)
    if found.st_ino >= PAST_INO_MIN:
        raise UsageError(
            f"content of past points in time, such as {path}, is not in the cache of the mount; to"
            " cache it, mount that point in time with -o ro,at=TIME"
        )
    wanted = os.R_OK | (os.X_OK if stat.S_ISDIR(found.st_mode) else 0)
    if not os.access(absolute, wanted):
        raise UsageError(f"no permission to read {path}")
    return Node(place, Ino(found.st_ino), absolute)


def shown(place: Target, path: str) -> str:
    """Return the path that programs see for an absolute path inside a filesystem."""
    mountpoint = (place.mountpoint or "").rstrip("/")
    return f"{mountpoint}{path}".rstrip("/") or "/"


def existing(paths: Iterable[EntryPath], cachedir: Path | None) -> list[Entry]:
    """Return the entries for existing paths; no filesystem may be mounted at or below a path.

    Raises:
        UsageError: a path does not exist, does not end in a name, is at or above a mountpoint, or
            ends with a slash although it is not a directory.
        NotMountedError: a path is not on a filesystem of s3fs-meta.
        SilentDaemonError: the daemon of a path's filesystem does not answer.
    """
    paths = list(paths)
    targets.require_answers(map(Path, paths))
    return [_existing(path, cachedir) for path in paths]


def changeable(paths: Iterable[EntryPath], cachedir: Path | None) -> list[Entry]:
    """Return the entries for existing paths in the present state of a filesystem.

    Raises:
        UsageError: a path shows a past point in time, or ``existing`` refuses it.
        NotMountedError: a path is not on a filesystem of s3fs-meta.
        SilentDaemonError: the daemon of a path's filesystem does not answer.
    """
    paths = list(paths)
    found = existing(paths, cachedir)
    for path, one in zip(paths, found, strict=True):
        if one.ino >= PAST_INO_MIN:
            raise UsageError(f"cannot change {path}: past points in time are read-only")
    return found


def _existing(path: EntryPath, cachedir: Path | None) -> Entry:
    parent, name = _split(path)
    absolute = os.path.join(parent, name)
    try:
        above, found = os.stat(parent), os.lstat(absolute)
    except OSError as exc:
        raise _unusable(path, exc) from exc
    if os.fspath(path).endswith("/") and not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{path}: {os.strerror(errno.ENOTDIR)}")
    mounts = mount_table.read()
    inside = [one.mountpoint for one in mounts if _is_below(one.mountpoint, absolute)]
    if absolute in inside or above.st_dev != found.st_dev:
        raise UsageError(f"the path {path} is a mountpoint; give paths below it")
    if inside:
        raise UsageError(f"another filesystem is mounted on {inside[0]}, below {path}")
    place = _place(mounts, parent, above.st_dev, cachedir, given=path)
    return Entry(place, Ino(above.st_ino), os.fsencode(name), Ino(found.st_ino), absolute)


def free(path: EntryPath, cachedir: Path | None, near: Entry) -> Entry:
    """Return the entry for a new name in an existing directory on the filesystem of *near*.

    Raises:
        UsageError: the name exists, or its directory is missing, is not a directory, shows the
            past, or is on another filesystem.
        SilentDaemonError: the daemon of the path's filesystem does not answer.
    """
    targets.require_answers([Path(path)])
    parent, name = _split(path)
    absolute = os.path.join(parent, name)
    if os.path.lexists(absolute):
        raise UsageError(f"{path} exists; choose a new name for the copy, or remove {path} first")
    device = os.stat(parent)
    if not stat.S_ISDIR(device.st_mode):
        raise UsageError(f"cannot create {path}: {Path(path).parent} is not a directory")
    if device.st_dev != os.lstat(os.path.dirname(near.path)).st_dev:
        raise UsageError(
            f"the path {path} is on another filesystem than {near.path}; use cp -a to copy between "
            "filesystems"
        )
    if device.st_ino >= PAST_INO_MIN:
        raise UsageError(f"cannot create {path}: past points in time are read-only")
    place = _place(mount_table.read(), parent, device.st_dev, cachedir)
    return Entry(place, Ino(device.st_ino), os.fsencode(name), Ino(0), absolute)


def hand_over(entry: Entry) -> None:
    """Make the kernel write back the dirty pages of a filesystem (syncfs(2)).

    Raises:
        OSError: some data could not be written back.
    """
    import ctypes  # a slow import that rm does not need

    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(os.path.dirname(entry.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if libc.syncfs(fd) != 0:
            code = ctypes.get_errno()
            why = (
                f"the kernel could not write back all files of this filesystem: {os.strerror(code)}"
            )
            raise OSError(code, why, entry.path)
    finally:
        os.close(fd)


def require_seen(
    wanted: Iterable[Entry], *, there: bool, within_s: float = KERNEL_FORGET_S_MAX
) -> None:
    """Wait until programs see that entries exist, or that the entries do not exist.

    The kernel answers lookups from its dentry cache until the mount has invalidated the entries.
    The mount may reply before the invalidation is complete, because invalidating a tree with
    100,000 cached names blocks every lookup in the tree for a few tenths of a second.

    Raises:
        ControlError: the change was made, but did not become visible within *within_s*.
        OSError: lookups fail, because the mount has ended.
    """
    deadline_s, pause_s = time.monotonic() + within_s, 0.001
    for entry in wanted:
        while _is_there(entry) is not there:
            if time.monotonic() > deadline_s:
                what = "created" if there else "removed"
                raise ControlError(
                    "ControlError",
                    f"{entry.path} was {what}, but the kernel has not noticed the change yet",
                )
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _POLL_S)


def _is_there(entry: Entry) -> bool:
    try:
        found = os.lstat(entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return entry.ino in {0, found.st_ino}


def require_name(path: EntryPath) -> tuple[str, str]:
    """Return a path's directory and the name in it; raise UsageError if it does not end in a name."""
    above, name = os.path.split(os.fspath(path).rstrip("/"))
    if name in {"", ".", ".."}:
        raise UsageError(
            f"the path {path} must end with the name of a file or directory, not with '.' or '..'"
        )
    return above, name


def _split(path: EntryPath) -> tuple[str, str]:
    """Return a path's directory, with symbolic links resolved, and the name in it.

    Raises:
        UsageError: the path does not end in a name, or its directory does not exist.
        NotMountedError: the path is in a mount of another user, or of a killed daemon.
    """
    above, name = require_name(path)
    try:
        return os.path.realpath(above or ".", strict=True), name
    except OSError as exc:
        raise _unusable(path, exc) from exc


def _unusable(path: EntryPath, exc: OSError) -> UsageError | NotMountedError:
    """Return the error for a path that cannot be examined."""
    if exc.errno == errno.ENOENT and (text := targets.given_a_url(str(Path(path)), _WANTED)):
        return UsageError(text)
    found: NotMountedError | None = None
    if exc.errno == errno.EACCES:
        found = of_closed_path(os.path.realpath(path))
    elif exc.errno in {errno.ENOTCONN, errno.ECONNABORTED}:
        found = of_dead_path(os.path.realpath(path))
    return found or UsageError(f"{path}: {exc.strerror}")


def _is_below(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}/")


def place_of(directory: str, cachedir: Path | None) -> Target:
    """Return the s3fs-meta filesystem of a directory, whose path must have no symbolic links.

    Raises:
        NotMountedError: the directory is on another filesystem.
    """
    return _place(mount_table.read(), directory, os.stat(directory).st_dev, cachedir)


def _place(
    mounts: list[Mounted],
    directory: str,
    device: int,
    cachedir: Path | None,
    *,
    given: EntryPath | None = None,
) -> Target:
    """Return the s3fs-meta filesystem of a directory.

    Args:
        mounts: the mount table.
        directory: absolute path without symbolic links.
        device: device number of the directory.
        cachedir: directory of local state, None for the default.
        given: the path that the error names; None for the directory.

    Raises:
        NotMountedError: the directory is on another filesystem.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for one in reversed(mounts):
        if one.device == number and mount_table.is_at_or_above(one, directory):
            if one.fs_type != mount_table.FS_TYPE:
                break
            return targets.of_mountpoint(Path(one.mountpoint), cachedir)
    raise NotMountedError(directory, outside(given or directory))


def outside(path: "str | Path") -> str:
    """Return the error message for a path that is on another filesystem."""
    return f"the path {path} is not on an s3fs-meta filesystem; s3fs-meta status lists all mounts"


def remove(entry: Entry) -> None:
    """Make a mount remove an entry and the tree below it, unless the tree is locked.

    Raises:
        NotMountedError: the filesystem is not mounted.
        ControlError: the mount refused; nothing was changed.
    """
    with named(entry.place):
        plain_call.call(entry.place.state, REMOVE, removal(entry))


def removal(entry: Entry, *, locked: bool = False, wait: bool = False) -> dict[str, int | str]:
    """Return the arguments of a control request that removes an entry."""
    return {**entry_message(entry), "locked": locked, "wait": wait}


def entry_message(entry: Entry) -> dict[str, int | str]:
    """Return an entry as the arguments of a control request."""
    return {"parent": entry.parent, "name": os.fsdecode(entry.name), "ino": entry.ino}
