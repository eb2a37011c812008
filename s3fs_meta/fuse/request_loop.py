"""Receiving FUSE requests without trio's scheduler while they arrive in quick succession.

Owns: how pyfuse3's workers wait for requests. Does not know: the meaning of requests.
For every request pyfuse3 acquires a trio lock and waits for its descriptor through trio, which
costs about 20 µs of interpreter time. pyfuse3 calls both functions through its module attribute
``trio`` (its asyncio layer also replaces this attribute). Here the attribute is a ``DirectTrio``. A
worker that has sent a reply first polls the descriptor with select(2), for at most NEXT_REQUEST_S.
A program that makes many system calls sends its next request within that time. If no request
arrives, the worker waits through trio. A worker that takes over while another worker handles the
last request does not poll, because polling would delay that request.

Keeps: under any load, other tasks wait for requests for at most a millisecond at a time:
``STREAK_S_MAX``, plus the time for which the extension serves frequent requests itself
(``STREAK_NS`` in ``fuse_intercept.c``).
While workers are busy, another worker waits for requests or is about to wait.
Tasks: pyfuse3's workers, all in one thread, so no other code runs between two awaits.
"""

import contextlib
import errno
import select
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

import trio
from trio.lowlevel import ParkingLot, checkpoint, current_task

from s3fs_meta.fuse.extension import pyfuse3
from s3fs_meta.limits import NEXT_REQUEST_S, STREAK_S_MAX

_SELECT_FD_MAX: Final = 1023  # the largest descriptor that select(2) accepts (FD_SETSIZE - 1)


class Gate:
    """The gate that a worker passes before each request; it replaces pyfuse3's lock."""

    def __init__(self) -> None:
        self._parked = ParkingLot()
        self.fd = -1  # the descriptor of /dev/fuse; -1 until a worker waits for a request
        self._fds: list[int] = []
        self._worker_waits = False  # True while a worker waits for the descriptor in trio
        # True once the request loop ends; a worker checks the flag before it waits for an event.
        self._is_closing = False
        # True if the worker that just passed the gate already has a request to receive.
        self._is_direct = False
        # The worker that received the last request. It replies before it passes the gate again.
        self._receiver: trio.lowlevel.Task | None = None
        self._streak_end_s = 0.0

    async def __aenter__(self) -> None:
        """Return when a request has arrived, or when this worker shall wait for one through trio."""
        task = current_task()
        while True:
            if time.perf_counter() > self._streak_end_s:
                await checkpoint()  # let other tasks run; another worker may receive a request
                self._streak_end_s = time.perf_counter() + STREAK_S_MAX
            wait_s = 0.0
            if self._receiver is task:
                wait_s, self._receiver = NEXT_REQUEST_S, None
            if self.is_ready(wait_s):
                self._is_direct = True
                return
            if not self._worker_waits:
                return
            await self._parked.park()

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _exc: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Wake another worker to wait for requests, because the current request may take long."""
        self._receiver = current_task()
        if self._parked and not self._worker_waits:
            self._parked.unpark()

    async def wait_readable(self, fd: int) -> None:
        """Return when a request is available, or immediately if the gate has already found one.

        Raises:
            trio.ClosedResourceError: the loop has ended.
        """
        if self._is_direct:
            self._is_direct = False
            return
        if fd != self.fd:
            self.fd = fd
            self._fds = [fd] if fd <= _SELECT_FD_MAX else []
        self._worker_waits = True
        try:
            while True:
                if self._is_closing:
                    raise trio.ClosedResourceError
                await trio.lowlevel.wait_readable(fd)
                # Wait again if another worker has received the request meanwhile.
                if not self._fds or self.is_ready(0.0):
                    return
        finally:
            self._worker_waits = False
            self._streak_end_s = time.perf_counter() + STREAK_S_MAX

    def notify_closing(self, fd: int) -> None:
        """End the loop: wake all waiting workers, and stop workers that would wait later."""
        self._is_closing = True
        trio.lowlevel.notify_closing(fd)

    def is_ready(self, wait_s: float) -> bool:
        """Block for at most *wait_s* until a request arrives; return whether one arrived."""
        return bool(self._fds and select.select(self._fds, (), (), wait_s)[0])


class DirectTrio:
    """The object that pyfuse3 uses as its module ``trio`` while a mount serves requests.

    The lock, ``wait_readable`` and ``notify_closing`` are those of a ``Gate``; all other names are
    trio's.
    """

    def __init__(self) -> None:
        self.gate = Gate()
        self.lowlevel = _Lowlevel(self.gate)

    def Lock(self) -> Gate:  # noqa: N802 - the name in trio
        """Return the gate for pyfuse3's workers, which pass the gate one at a time."""
        return self.gate

    def __getattr__(self, name: str) -> Any:
        return getattr(trio, name)


class _Lowlevel:
    def __init__(self, gate: Gate) -> None:
        self.wait_readable = gate.wait_readable
        self.notify_closing = gate.notify_closing

    def __getattr__(self, name: str) -> Any:
        return getattr(trio.lowlevel, name)


@contextlib.contextmanager
def direct() -> Iterator[None]:
    """Replace ``trio`` in pyfuse3 during the context in which its main loop runs."""
    module: Any = pyfuse3
    module.trio = DirectTrio()
    try:
        yield
    finally:
        module.trio = trio


def is_running() -> bool:
    """Return whether pyfuse3's main loop runs inside the context of ``direct``."""
    return isinstance(vars(pyfuse3)["trio"], DirectTrio)


def descriptor() -> int:
    """Return the descriptor of /dev/fuse. Any thread may call this.

    Raises:
        OSError: ENOTCONN, because pyfuse3's main loop does not run.
    """
    current = vars(pyfuse3)["trio"]
    if not isinstance(current, DirectTrio) or current.gate.fd < 0:
        raise OSError(errno.ENOTCONN, "the FUSE main loop is not running")
    return current.gate.fd
