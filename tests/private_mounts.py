"""A mount namespace of the suite's own.

Without it every other program on the machine that makes one (a container, a unit with private
mounts, another run of the suite) gets a copy of each test's mount, and the daemon of that test goes
on until that program ends. Where it is not possible, the tests run as they are.
Source: mount_namespaces(7).
"""

import ctypes
import os
from typing import Final

_CLONE_NEWNS: Final = 0x20000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 1 << 18


are_private = False


def make_private() -> None:
    """Give this process, and all that it starts, mounts that no other sees, if it may.

    In the main thread, before there are others that mount something.
    """
    global are_private  # noqa: PLW0603 - a fact about this process
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.unshare(_CLONE_NEWNS) != 0:
        return
    if libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "/")
    are_private = True
