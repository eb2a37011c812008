"""A private mount namespace for the tests.

Without it, a program that creates a mount namespace during the tests, such as a container, would
get a copy of each test's mount. The daemon of the test would then run until that program exits.
Copies of this host's own mounts are removed from the namespace, so a user can unmount during the
tests. Without root privileges, the tests run in the host's namespace. Source: mount_namespaces(7).
"""

import ctypes
import os
from typing import Final

from s3fs_meta.mount.existing import mount_table

_CLONE_NEWNS: Final = 0x20000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18
_MNT_DETACH: Final = 2


are_private = False


def make_private() -> None:
    """Make the mounts of this process and of its children private, if it runs as root.

    This function must be called before any other thread mounts a filesystem.
    """
    global are_private  # noqa: PLW0603 - a fact about this process
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(_CLONE_NEWNS) != 0:
        return
    if libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "/")
    are_private = True
    for mounted in reversed(mount_table.read()):
        if mounted.fs_type == mount_table.FS_TYPE:
            libc.umount2(os.fsencode(mounted.mountpoint), _MNT_DETACH)  # Ignore unmount errors.
