"""The reason why no daemon answers a command.

Owns: distinguishing a killed mount, a mount of another user, a mount with another state directory,
and a filesystem that is not mounted on this host. Does not know: commands.
Keeps: no slow imports unless a mount was killed, because ``rm PATH`` must start fast.
"""

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from s3fs_meta.console.printable import user_name
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.existing.mount_table import Mounted
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.limits import DEAD_MOUNT_S_MAX
from s3fs_meta.mount_errors import (
    KilledMountError,
    NotMountedError,
    OtherUserError,
    UnreachedDaemonError,
)


@contextlib.contextmanager
def named(place: Target) -> Iterator[None]:
    """Replace a NotMountedError by an error that names the mountpoint or URL, and the reason.

    Raises:
        NotMountedError: the daemon has exited, and the daemon of a later mount would answer.
    """
    if place.successor:
        raise _succeeded(place)
    try:
        yield
    except NotMountedError as exc:
        raise _reason(place) from exc


def _succeeded(place: Target) -> NotMountedError:
    """Return the error for a mount that has ended, if its filesystem is mounted again elsewhere."""
    where = str(place.mountpoint)
    now = f"the filesystem is now mounted on {place.successor}"
    if not place.mounted:
        return NotMountedError(where, f"{where} was unmounted, and {now}")
    return NotMountedError(
        where,
        f"the daemon of {where} was killed, and {now}; to remove the dead mount, run: s3fs-meta"
        f" umount {shlex.quote(where)}",
    )


def _reason(place: Target) -> NotMountedError:
    """Return the error for a command that no daemon answered. May block for DEAD_MOUNT_S_MAX."""
    mounted = _mounted(place)
    if mounted is None:
        return NotMountedError(place.mountpoint or place.url)
    other_user = _other_user(mounted)
    if other_user is not None:
        return other_user
    if not mount_table.is_disconnected_within(mounted.mountpoint, DEAD_MOUNT_S_MAX):
        in_note = targets.of_mountpoint(Path(mounted.mountpoint), None)
        is_used = targets.is_served(mounted) and in_note.state == place.state
        return UnreachedDaemonError(mounted.mountpoint, str(place.state), is_used=is_used)
    from s3fs_meta.mount.existing import killed_state  # a slow import, which loads SQLite

    killed = targets.of_killed(mounted) or place
    return KilledMountError(
        mounted.mountpoint, killed_state.described(killed.state), targets.mount_command(killed)
    )


def of_closed_path(path: str) -> OtherUserError | None:
    """Return the error for a path in a mount that this user may not access; None for other paths.

    Without ``allow_other`` the kernel denies all other users, including root, any access. Even the
    attributes of the mountpoint are then unreadable.
    """
    mounted = mount_table.find_above(path)
    if mounted is not None:
        try:
            os.stat(mounted.mountpoint)
        except PermissionError:
            return _other_user(mounted)
        except OSError:
            return None
    return None


def of_dead_path(path: str) -> NotMountedError | None:
    """Return the error for a path whose daemon has exited; None if no mount contains the path."""
    mounted = mount_table.find_above(path)
    if mounted is None:
        return None
    return _reason(targets.of_mountpoint(Path(mounted.mountpoint), None))


def _other_user(mounted: Mounted) -> OtherUserError | None:
    owner = mount_table.owner(mounted)
    if owner in {None, os.geteuid()}:
        return None
    return OtherUserError(mounted.mountpoint, user_name(int(owner or 0)))


def _mounted(place: Target) -> Mounted | None:
    """Return the mount of a filesystem on this host, or None if it is not mounted."""
    if place.mountpoint is not None:
        return mount_table.find(place.mountpoint) if place.mounted else None
    for mounted in reversed(mount_table.read()):
        if targets.is_mount_of(mounted, place.url):
            return mounted
    return None
