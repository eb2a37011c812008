"""A private mount namespace for the tests.

Otherwise every program that makes a mount namespace meanwhile, such as a container, gets a copy of
each test's mount, and the daemon of the test runs until that program exits. For the same reason the
copies of this host's mounts are removed: a user can unmount while tests run. Without permission
the tests run in the namespace of the host. Source: mount_namespaces(7).
"""

import ctypes
import os
from typing import Final

from s3fs_meta.mount import mount_table

_CLONE_NEWNS: Final = 0x20000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18
_MNT_DETACH: Final = 2


are_private = False


def make_private() -> None:
    """Make the mounts of this process and of its children private, if that is permitted.

    The call must come before other threads mount anything.
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
            libc.umount2(os.fsencode(mounted.mountpoint), _MNT_DETACH)  # a hidden mount stays
