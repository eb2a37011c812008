"""The daemon's process: file limit, garbage collection, fatal signals, service manager.

Sources: getrlimit(2); sd_notify(3), "Notes": the protocol is stable and may be implemented without
the library.
"""

import contextlib
import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
from types import FrameType
from typing import Final

from s3fs_meta.mount.limits import OPEN_FILES_WANTED

_log = logging.getLogger(__name__)

ENVIRONMENT_NAME: Final = "NOTIFY_SOCKET"


def raise_open_files(wanted: int = OPEN_FILES_WANTED) -> None:
    """Raise the soft limit on open files to *wanted*, or to the hard limit if that is lower.

    The usual soft limit of 1,024 protects programs that use select(2) with many files. This program
    does not. The hard limit is usually much higher.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def exempt_objects() -> None:
    """Collect garbage now, and exempt the remaining objects from later collections.

    A full collection examines every object with the interpreter lock held. Libraries and the
    descriptions of S3 create more than a hundred thousand objects, which are never freed. Examining
    them takes 80 ms, during which no request is answered.
    """
    gc.unfreeze()  # objects that are garbage may be exempt since the start of the program
    gc.collect()
    gc.freeze()


def explain_aborts() -> None:
    """Print the stack of every thread to standard error if a fatal signal kills the process.

    A watchdog kills a stalled daemon with SIGABRT; the stacks then show the cause.
    """
    faulthandler.enable()


def outlast_signals() -> None:
    """Ignore signals to end from now on, except while a receiver of signals handles them.

    Receivers handle signals while the mount serves, and during its last upload. Between these two
    phases, and while the mount releases its lease, a signal would otherwise kill the process. Both
    intervals are short. A handler replaces SIG_IGN, because child processes would inherit SIG_IGN.
    A closed terminal may send SIGHUP twice; the second SIGHUP does not stop the last upload.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1) ignores SIGHUP
            signal.signal(number, _ignored)


def _ignored(number: int, _frame: FrameType | None) -> None:
    _log.info("received %s: the mount is already ending", signal.Signals(number).name)


def notify(state: str, address: str | None = None) -> bool:
    """Send a state such as ``READY=1`` to systemd; return whether it was sent.

    The call does not wait if the socket is full, because it runs on the event loop.
    """
    address = address if address is not None else os.environ.get(ENVIRONMENT_NAME, "")
    if not address.startswith(("/", "@")):
        return False
    # In NOTIFY_SOCKET, "@" replaces the leading NUL byte of an abstract address.
    name = "\0" + address[1:] if address[0] == "@" else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(state.encode(errors="backslashreplace"), name)
        return True
    return False
