"""The daemon's process: file limit, garbage collection, signals, service manager.

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
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import Any, Final

import trio

from s3fs_meta.background_task import background_task
from s3fs_meta.mount.limits import OPEN_FILES_WANTED

_log = logging.getLogger(__name__)

ENVIRONMENT_NAME: Final = "NOTIFY_SOCKET"
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A terminal or a service manager may send the same signal twice within this time.
_REPEATED_S: Final = 1.0


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
    """Run Python's garbage collector now, and exempt the remaining objects from later runs.

    A full collection examines every object with the interpreter lock held. Libraries and botocore's
    description of S3 create more than a hundred thousand objects, which are never freed. Examining
    them takes 80 ms, during which no request is answered.
    """
    gc.unfreeze()  # objects exempted at the start of the program may be garbage by now
    gc.collect()
    gc.freeze()


def explain_aborts() -> None:
    """Print the stack of every thread to standard error if a fatal signal kills the process.

    A watchdog kills a stalled daemon with SIGABRT; the stacks then show the cause.
    """
    faulthandler.enable()


class Signals:
    """Handles the signals that end a mount, except while it serves and during its last upload.

    In these two phases, other objects handle signals. Before these phases, a signal cancels the
    start of the mount, and the mount releases its lease. If the same signal arrives again after
    _REPEATED_S, it kills the process. A different signal does not, because after Ctrl-C the parent
    process sends SIGTERM. Between and after the two phases, signals are ignored, so that the mount
    releases its lease. A closed terminal may send SIGHUP twice; the second SIGHUP does not stop the
    last upload.
    """

    def __init__(self) -> None:
        # nohup(1) ignores SIGHUP; SIGTERM is handled even if the parent process ignored it
        self.numbers = [
            one
            for one in _ENDING
            if one is signal.SIGTERM or signal.getsignal(one) is not signal.SIG_IGN
        ]
        self.start = trio.CancelScope()
        self._before = {number: signal.getsignal(number) for number in self.numbers}
        self._is_started = False
        self._received: signal.Signals | None = None

    def end_of_start(self) -> None:
        """Ignore signals from now on, instead of cancelling the mount that is starting."""
        self._is_started = True

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """Let signals end the process during a with-block that blocks the event loop.

        The process must not hold the lease.
        """
        handlers = {number: signal.getsignal(number) for number in self.numbers}
        _install(self._before)
        try:
            yield
        finally:
            _install(handlers)

    async def run(self, signals: AsyncIterator[int]) -> None:
        """Handle signals until cancelled, or until a signal has cancelled the start."""
        async for number in signals:
            name = signal.Signals(number).name
            if self._is_started:
                _log.info("received %s: the mount is already ending", name)
                continue
            _log.warning("received %s: the mount does not start", name)
            self._received = signal.Signals(number)
            self.start.cancel()
            await trio.sleep(_REPEATED_S)
            signal.signal(number, signal.SIG_DFL)
            return

    def conclude(self) -> None:
        """After a cancelled start, end the process with the signal that cancelled the start.

        Raises:
            KeyboardInterrupt: the signal was SIGINT.
        """
        if not self.start.cancelled_caught:
            return
        assert self._received is not None, "only a signal cancels the start"
        if self._received is signal.SIGINT:
            raise KeyboardInterrupt
        signal.signal(self._received, signal.SIG_DFL)
        signal.raise_signal(self._received)


@contextlib.asynccontextmanager
async def handled_signals() -> AsyncIterator[Signals]:
    """Handle the signals of a mount that starts, serves and ends in the with-block.

    Raises:
        KeyboardInterrupt: SIGINT cancelled the mount. After another signal, the process ends.
    """
    handling = Signals()
    with trio.open_signal_receiver(*handling.numbers) as signals:
        async with background_task(partial(handling.run, signals)):
            with handling.start:
                yield handling
    handling.conclude()


def _install(handlers: Mapping[signal.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


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
