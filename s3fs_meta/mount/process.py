"""The process of a mount: its bound on open files, its garbage collector, its supervisor.

Sources: getrlimit(2); sd_notify(3), "Notes": the protocol is stable and may be spoken without the
library.
"""

import contextlib
import gc
import os
import resource
import socket
from typing import Final

from s3fs_meta.limits import OPEN_FILES_WANTED

ENVIRONMENT_NAME: Final = "NOTIFY_SOCKET"


def raise_open_files() -> None:
    """Raise the soft bound to OPEN_FILES_WANTED, or as far as the hard one allows.

    The usual soft bound, 1,024, is there for programs that use select(2) with any descriptor; the
    hard one is far above it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def exempt_objects() -> None:
    """Collect garbage now, and exempt all other objects from later collections.

    A full collection examines every object with the interpreter lock held. Libraries and the
    descriptions of S3 leave more than a hundred thousand objects, which are never freed: 80 ms during
    which no request is answered.
    """
    gc.collect()
    gc.freeze()


def notify(state: str, address: str | None = None) -> bool:
    """Send systemd one state such as ``READY=1``; return whether a supervisor listens."""
    address = address if address is not None else os.environ.get(ENVIRONMENT_NAME, "")
    if not address.startswith(("/", "@")):
        return False
    # "@" stands for the NUL byte of an abstract socket.
    name = "\0" + address[1:] if address[0] == "@" else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), name)
        return True
    return False
