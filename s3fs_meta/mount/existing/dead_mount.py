"""The mount that remains on a mountpoint after its daemon was killed.

Owns: distinguishing the mount of a killed daemon from the mount of a running daemon. Does not know:
how a mount is detached. The kernel keeps the mount of a killed daemon and answers all requests with
ENOTCONN. This module queries the kernel, because the note of a running daemon is not always found:
the note may belong to another user or another PID namespace.
"""

from pathlib import Path

from s3fs_meta.background_task import in_thread
from s3fs_meta.errors import HeldError, SettingsError
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.limits import DEAD_MOUNT_S_MAX


async def is_left(mountpoint: Path, url: str) -> bool:
    """Return whether a killed daemon has left a mount of a given URL on a mountpoint.

    Raises:
        HeldError: the daemon runs, or the kernel does not answer within DEAD_MOUNT_S_MAX.
        SettingsError: another filesystem is mounted there.
    """
    left = mount_table.find(str(mountpoint))
    if left is None:
        return False
    if not targets.is_mount_of(left, url):
        raise SettingsError(
            f"another filesystem, {targets.unquoted(left.source)}, is mounted on {mountpoint}"
        )
    # If this user may not query the kernel, or it does not answer in time, the daemon may run.
    if targets.is_served(left) or not await in_thread(
        mount_table.is_disconnected_within,
        str(mountpoint),
        DEAD_MOUNT_S_MAX,
        abandon_on_cancel=True,
    ):
        raise HeldError(f"the filesystem is already mounted on {mountpoint}")
    return True
