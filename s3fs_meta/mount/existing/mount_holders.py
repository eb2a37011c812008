"""The processes in other mount namespaces that still use an unmounted filesystem.

Owns: reading /proc. Does not know: how callers use the result.
A container, ``unshare -m`` or a systemd unit with private mounts receives a copy of every mount.
The filesystem stays in use until the last copy is unmounted. Reading ``mountinfo`` of a process
never accesses a mounted filesystem.
The kernel reuses the device number of an unmounted filesystem, so two mounts are the same only if
their sources (URLs) are the same too.
Source: mount_namespaces(7), proc_pid_mountinfo(5).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.counted import counted
from s3fs_meta.mount.existing import mount_table
from s3fs_meta.mount.existing.mount_table import Mounted
from s3fs_meta.mount.limits import HOLDERS_SHOWN_MAX

_PROC: Final = Path("/proc")


class Holder(NamedTuple):
    """A process whose mount namespace contains the filesystem."""

    pid: int
    name: str
    mountpoint: str  # path of the mountpoint, as the process sees it


def is_mounted_here(wanted: Mounted) -> bool:
    """Return whether a filesystem is mounted in the mount namespace of this process."""
    return _mountpoint(_PROC / "self", wanted) is not None


def find(wanted: Mounted) -> list[Holder]:
    """Return the processes that have a filesystem mounted, at most the first HOLDERS_SHOWN_MAX.

    Processes that the caller may not inspect are not found. The search takes a few milliseconds per
    hundred processes, so call it in a thread.

    Args:
        wanted: the filesystem as it was first mounted; the mountpoint is ignored.
    """
    found = []
    for pid in sorted(int(name) for name in os.listdir(_PROC) if name.isdigit()):
        process = _PROC / str(pid)
        mountpoint = _mountpoint(process, wanted)
        if mountpoint is not None:
            found.append(Holder(pid, _name(process), mountpoint))
            if len(found) == HOLDERS_SHOWN_MAX:
                break
    return found


def described(holders: list[Holder], open_files: int) -> str:
    """Return the part of an error message that lists the processes using a filesystem."""
    if holders:
        named = [f"{one.name} (pid {one.pid}) on {one.mountpoint}" for one in holders]
        more = " and more" if len(holders) == HOLDERS_SHOWN_MAX else ""
        return f"in another mount namespace by {', '.join(named)}{more}"
    if open_files:
        return f"by {counted(open_files, 'open file')} of a mountpoint that was detached"
    return "by a mount namespace or a process that is not visible to this user"


def _mountpoint(process: Path, wanted: Mounted) -> str | None:
    return next(_mountpoints(process, wanted), None)


def _mountpoints(process: Path, wanted: Mounted) -> Iterator[str]:
    try:
        content = (process / "mountinfo").read_bytes()
    except OSError:
        return  # the process has exited, or this user has no permission to inspect it
    if f" {wanted.device} ".encode() not in content:
        return
    for mounted in mount_table.parse(mount_table.lines(content)):
        if mounted._replace(mountpoint=wanted.mountpoint) == wanted:
            yield mounted.mountpoint


def _name(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "?"
