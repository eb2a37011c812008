"""The way from one FUSE request to the next, without the scheduler where it is not needed.

Owns: how pyfuse3's workers wait for requests. Does not know: what requests mean.
pyfuse3 takes a lock and waits for its descriptor through trio, for every request: some 20 µs of
interpreter. It looks these two up in its module attribute ``trio``, which its own asyncio layer
replaces; here it holds ``DirectTrio``. A worker that has answered asks the kernel
itself for the next request, and waits for it for a moment: a program that makes one system call
after the other has it ready in less. Only when none comes does the worker wait through trio.

Keeps: every other task runs at least once in ``STREAK_S_MAX``, however many requests come; there
is always a worker that waits for requests, or is about to, while others are busy.
Tasks: pyfuse3's workers, all in one thread, so nothing happens between two awaits.
"""

import contextlib
import select
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

import trio
from trio.lowlevel import ParkingLot, checkpoint

from s3fs_meta.fuse.extension import pyfuse3
from s3fs_meta.limits import NEXT_REQUEST_S, STREAK_S_MAX

_SELECT_FD_MAX: Final = 1023  # select(2): FD_SETSIZE


class Gate:
    """The gate before each request: it replaces pyfuse3's lock around its workers."""

    def __init__(self) -> None:
        self._parked = ParkingLot()
        self._fd = -1
        self._fds: list[int] = []
        self._someone_waits = False  # for the descriptor, through trio
        self._is_closing = False  # trio wakes the workers that wait now, none that come later
        self._is_direct = False  # the worker that has just passed the gate need not wait
        self._has_answered = False  # the worker that took the last request, without waiting
        self._streak_end_s = 0.0

    async def __aenter__(self) -> None:
        """Return when a request is available, or when no other worker waits for one through trio."""
        while True:
            if time.perf_counter() > self._streak_end_s:
                await checkpoint()
                self._streak_end_s = time.perf_counter() + STREAK_S_MAX
            wait_s, self._has_answered = NEXT_REQUEST_S if self._has_answered else 0.0, False
            if self._is_ready(wait_s):
                self._is_direct = True
                return
            if not self._someone_waits:
                return
            await self._parked.park()
            self._has_answered = False  # it waits for something, or it was not this worker's turn

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _exc: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Let another worker stand by: the request that was taken may take long."""
        self._has_answered = True
        if self._parked and not self._someone_waits:
            self._parked.unpark()

    async def wait_readable(self, fd: int) -> None:
        """Return when a request is available, at once if the gate has seen it already.

        Raises:
            trio.ClosedResourceError: the loop ends.
        """
        if self._is_direct:
            self._is_direct = False
            return
        if fd != self._fd:
            self._fd = fd
            self._fds = [fd] if fd <= _SELECT_FD_MAX else []
        self._someone_waits = True
        try:
            while True:
                if self._is_closing:
                    raise trio.ClosedResourceError
                await trio.lowlevel.wait_readable(fd)
                if not self._fds or self._is_ready(0.0):  # otherwise another worker has taken it
                    return
        finally:
            self._someone_waits = False
            self._streak_end_s = time.perf_counter() + STREAK_S_MAX

    def notify_closing(self, fd: int) -> None:
        """Wake waiting workers: the loop ends. Workers woken for a request check for the end, too."""
        self._is_closing = True
        trio.lowlevel.notify_closing(fd)

    def _is_ready(self, wait_s: float) -> bool:
        return bool(self._fds and select.select(self._fds, (), (), wait_s)[0])


class DirectTrio:
    """A replacement of pyfuse3's module attribute ``trio``: the library with another lock and wait."""

    def __init__(self) -> None:
        self._gate = Gate()
        self.lowlevel = _Lowlevel(self._gate)

    def Lock(self) -> Gate:  # noqa: N802 - the name in the library
        """Return the gate, which workers pass one by one."""
        return self._gate

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
    """Let pyfuse3's main loop, while it runs, take requests directly."""
    module: Any = pyfuse3
    module.trio = DirectTrio()
    try:
        yield
    finally:
        module.trio = trio
