"""Telling systemd that the mount is ready, for units with Type=notify.

Source: sd_notify(3), "Notes": the protocol is stable and may be spoken without the library.
"""

import contextlib
import os
import socket
from typing import Final

ENVIRONMENT_NAME: Final = "NOTIFY_SOCKET"


def notify(state: str, address: str | None = None) -> bool:
    """Send one state such as ``READY=1``; return whether a supervisor listens."""
    address = address if address is not None else os.environ.get(ENVIRONMENT_NAME, "")
    if not address.startswith(("/", "@")):
        return False
    # "@" stands for the NUL byte of an abstract socket.
    name = "\0" + address[1:] if address[0] == "@" else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), name)
        return True
    return False
