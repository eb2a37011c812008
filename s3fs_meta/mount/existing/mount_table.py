"""The filesystems that are mounted on this host, as the kernel lists them.

Owns: reading /proc/self/mountinfo.
Keeps: only ``is_disconnected`` and ``entered`` access a mounted filesystem, because an access blocks
if the daemon hangs. A caller of ``entered`` checks the daemon of a filesystem before the access.
Source: proc_pid_mountinfo(5).
"""

import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

FS_TYPE: Final = "fuse.s3fs-meta"
_AUTOMOUNT: Final = "autofs"
LINKS_FOLLOWED_MAX: Final = 40  # maximum number of symbolic links to follow in a path, as in Linux
_NO_DAEMON: Final = frozenset({errno.ENOTCONN, errno.ECONNABORTED})
_MOUNTINFO: Final = Path("/proc/self/mountinfo")


class Mounted(NamedTuple):
    """One entry of the kernel's mount table."""

    mountpoint: str
    device: str  # device number of the filesystem as major:minor
    fs_type: str
    source: str  # source of the mount: the URL for an s3fs-meta mount


def parse(table: Iterable[str]) -> list[Mounted]:
    """Return the mounts in the kernel's order; on each path the last mount is visible."""
    found = []
    for line in table:
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        found.append(
            Mounted(
                mountpoint=_unescape(fields[4]),
                device=fields[2],
                fs_type=_unescape(rest[0]),
                source=_unescape(rest[1]),
            )
        )
    return found


def read() -> list[Mounted]:
    """Return the mounts of this process's mount namespace."""
    return parse(_lines())


class Flags(NamedTuple):
    """The options in the kernel's entry for one mounted filesystem."""

    mount: frozenset[str]  # options of one mountpoint, such as nosuid, relatime
    filesystem: frozenset[str]  # options of the filesystem at every mountpoint, such as ro


def flags(wanted: Mounted, table: Iterable[str], *, anywhere: bool = False) -> Flags | None:
    """Return the flags of a mount, or None if *table* does not contain it.

    Args:
        wanted: the mount.
        table: the lines of mountinfo.
        anywhere: True to ignore the mountpoint of *wanted*.
    """
    found = None
    for line in table:
        (mounted,) = parse([line])
        if anywhere:
            mounted = mounted._replace(mountpoint=wanted.mountpoint)
        if mounted == wanted:
            before, _, after = line.partition(" - ")
            found = Flags(
                frozenset(before.split(" ")[5].split(",")),
                frozenset(after.split(" ")[2].split(",")),
            )
    return found


def owner(wanted: Mounted) -> int | None:
    """Return the ID of the user who mounted a filesystem, or None if it is not mounted."""
    found = flags_here(wanted)
    options = () if found is None else found.filesystem
    return next((int(word[8:]) for word in options if word.startswith("user_id=")), None)


def flags_here(wanted: Mounted, *, anywhere: bool = False) -> Flags | None:
    """Return the current flags of a mount, or None if it is not in this mount namespace."""
    return flags(wanted, _lines(), anywhere=anywhere)


def find(mountpoint: str) -> Mounted | None:
    """Return the visible s3fs-meta mount at an absolute path, or None if there is no such mount."""
    for mounted in reversed(read()):
        if mounted.mountpoint == mountpoint:
            return mounted if mounted.fs_type == FS_TYPE else None
    return None


def find_above(path: str) -> Mounted | None:
    """Return the last s3fs-meta mount at or above an absolute path, or None if there is none."""
    return next(
        (one for one in reversed(read()) if one.fs_type == FS_TYPE and is_at_or_above(one, path)),
        None,
    )


def is_at_or_above(mounted: Mounted, path: str) -> bool:
    """Return whether a mountpoint is an absolute path, or contains it."""
    above = mounted.mountpoint.rstrip(os.sep)
    return path == above or path.startswith(f"{above}{os.sep}")


def same_filesystem(wanted: Mounted) -> list[Mounted]:
    """Return all mounts of a filesystem in this mount namespace, including bind mounts."""
    return [one for one in read() if one._replace(mountpoint=wanted.mountpoint) == wanted]


def is_automount(mountpoint: str) -> bool:
    """Return whether the topmost mount at an absolute path belongs to an automounter."""
    found = [one.fs_type for one in read() if one.mountpoint == mountpoint]
    return found[-1:] == [_AUTOMOUNT]


def is_disconnected(mountpoint: str) -> bool:
    """Return whether a mount's daemon has exited; False if this user may not query the kernel.

    The kernel keeps the mount of a killed daemon. statfs(2) is never answered from a cache, and
    waits for a running daemon that does not answer.
    Source: Linux, fs/fuse/inode.c, fuse_statfs; fs/fuse/dev.c, fuse_abort_conn.
    """
    try:
        os.statvfs(mountpoint)
    except OSError as exc:
        return exc.errno in _NO_DAEMON
    return False


def is_disconnected_within(mountpoint: str, limit_s: float) -> bool | None:
    """Return ``is_disconnected``, or None if the kernel does not answer in time. The call blocks.

    A request to a daemon that does not answer cannot be cancelled, so a thread sends it.
    """
    found: list[bool] = []
    asking = threading.Thread(target=lambda: found.append(is_disconnected(mountpoint)), daemon=True)
    asking.start()
    asking.join(limit_s)
    return found[0] if found else None


def entered(path: Path, *, at_end: bool) -> Iterator[Mounted]:
    """Yield the s3fs-meta mounts that path resolution enters, each before it is accessed.

    A mount is yielded again before each access, so that the caller can stop between two accesses.

    Args:
        path: a path, which need not exist.
        at_end: True if the caller accesses the object at the path, which may be a mountpoint.

    Raises:
        FileNotFoundError: the path is relative, and the working directory was removed.
    """
    mounts = read()
    mountpoints = {one.mountpoint for one in mounts}
    # Fails if the working directory was removed.
    absolute = path if path.is_absolute() else Path.cwd() / path
    todo = str(absolute).split(os.sep)[::-1]
    current, links = os.sep, 0
    while todo and links <= LINKS_FOLLOWED_MAX:
        name = todo.pop()
        if name in {"", os.curdir}:
            continue
        if name == os.pardir:
            current = os.path.dirname(current)
            continue
        yield from _entered_at(mounts, current)
        current = os.path.join(current, name)
        if current in mountpoints:
            continue  # no need for readlink(2): a mountpoint is not a symbolic link
        try:
            link = os.readlink(current)
        except OSError:
            continue
        links += 1
        current = os.sep if link.startswith(os.sep) else os.path.dirname(current)
        todo += link.split(os.sep)[::-1]
    if at_end:
        yield from _entered_at(mounts, current)


def _entered_at(mounts: list[Mounted], directory: str) -> Iterator[Mounted]:
    """Yield the visible mount at or above a directory if it is an s3fs-meta mount."""
    for one in reversed(mounts):
        if is_at_or_above(one, directory):
            if one.fs_type == FS_TYPE:
                yield one
            return


def resolve(mountpoint: Path) -> str:
    """Return the path of a mountpoint without symbolic links, as the mount table lists it.

    The mounted filesystem is not accessed: its root is a directory, for which readlink(2) fails
    without a request to the daemon.
    """
    path = os.path.abspath(mountpoint)
    for _ in range(LINKS_FOLLOWED_MAX):
        parent, name = os.path.split(path)
        if name in {"", os.curdir, os.pardir}:
            break
        path = os.path.join(os.path.realpath(parent), name)
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path).rstrip(os.sep) or os.sep)
        except OSError:
            return path
    return os.path.realpath(path)


def lines(content: bytes) -> list[str]:
    """Return the lines of a mountinfo file.

    The kernel escapes only space, tab, newline, backslash and #. So a path may contain any other
    character that ``str.splitlines`` or a text file treats as the end of a line, such as U+2028.
    """
    return [line for line in os.fsdecode(content).split("\n") if line]


def _lines() -> list[str]:
    return lines(_MOUNTINFO.read_bytes())


def _unescape(text: str) -> str:
    r"""Undo the octal escapes of space, tab, newline, backslash and #."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
