"""Collecting from the kernel what programs wrote to files that they hold open.

Owns: when the kernel handed over last, the process that makes it, how old the rest may be.
Does not know: what is done with what was collected (``sync.durability``, ``sync.changelog.writer``).

With a write-back cache write(2) ends in the kernel's memory, and mapped pages are always there. The
kernel sends them at close(2), at fsync(2), or when they are 30 s old. So that a killed daemon, a
power cut or a lost machine costs no more than their intervals, everything dirty is asked for before
each background sync and each cut. If no file is open for writing that costs nothing at all: close(2)
has handed over the rest.

One *pass* is a syncfs(2), which starts write-back, and the barrier (``barrier``). Kernels since 2026
start it without regard for pages that are already on their way, and skip files while many requests
are queued, so a pass in which more than a few came is followed by another one. Collecting
never takes the lock of a file, so that no writer waits for it.
Source: Linux, fs/fs-writeback.c, sync_inodes_sb; fs/fuse/file.c, fuse_writepages.

Keeps: nothing that waits for the kernel runs in this process (``write_back_process``).
Tasks: any may call ``collect``; one collection at a time serves all that wait for it.
Design: docs/design/durability.md, "From the kernel to the daemon".
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fuse.barrier import Barrier
from s3fs_meta.limits import (
    COLLECT_PASSES_MAX,
    COLLECT_QUIET_REQUESTS,
    COLLECT_S_MAX,
    COLLECTOR_END_S_MAX,
)

_log = logging.getLogger(__name__)

_SCRIPT: Final = Path(__file__).with_name("write_back_process.py")
_INHERITED: Final = ("LD_LIBRARY_PATH", "PATH")  # and nothing that could be a secret


class WriteBack:
    """The dirty pages that the kernel holds of one mount."""

    def __init__(
        self,
        barrier: Barrier,
        open_files: OpenFiles,
        requests: Mapping[str, int],
        *,
        is_still: Callable[[], bool],
    ) -> None:
        """Make the object; nothing runs yet.

        Args:
            barrier: which the handlers of the mount answer for.
            open_files: of the mount.
            requests: how many of each kind came, kept up to date.
            is_still: whether writes are blocked for a copy of their tree.
        """
        self._barrier = barrier
        self._open_files = open_files
        self._requests = requests
        self._is_still = is_still
        self._place = ""
        self._device = 0
        self._process: CollectingProcess | None = None
        self._lock = trio.Lock()
        self._serves = False
        self._began_s = self._collected_s = self._asked_s = float("-inf")
        self.last_error = ""

    def begin(self, place: str, device: int) -> None:
        """Take note of where the filesystem is mounted; it can be collected from then on."""
        self._place, self._device, self._serves = place, device, True

    async def close(self) -> None:
        """Collect no more, and end the process."""
        self._serves = False
        if self._process is not None:
            process, self._process = self._process, None
            await process.end()

    @property
    def pid(self) -> int | None:
        """Return the process that collects, None if there is none (yet)."""
        return None if self._process is None else self._process.pid

    def figures(self) -> dict[str, Any]:
        """Return what ``status`` shows. Schedule point: never."""
        return {
            "open_files": len(self._open_files),
            "open_for_writing": self._open_files.writing,
            "age_s": round(self.age_s(), 3),
            "asked_age_s": round(self.asked_age_s(), 3),
            "collector_pid": self.pid,
            "last_error": self.last_error,
        }

    def age_s(self) -> float:
        """Return how old the oldest bytes can be that the kernel has and this process has not."""
        return self._age_s(self._collected_s)

    def asked_age_s(self) -> float:
        """Return how long ago everything was asked for, and all came that the kernel sent then.

        While programs write without pause that is not everything for certain, so ``age_s`` goes on:
        the kernel may have passed over a file whenever its queue was long.
        """
        return self._age_s(self._asked_s)

    def _age_s(self, done_s: float) -> float:
        since_s = self._open_files.writing_since_s
        if since_s is None or not self._serves:
            return 0.0
        return max(time.monotonic() - max(since_s, done_s), 0.0)

    async def collect(self, limit_s: float = COLLECT_S_MAX) -> bool:
        """Have the kernel hand over all that was written before this call.

        Args:
            limit_s: for how long at most; the caller goes on without the rest then.

        Returns:
            Whether it did. If not the reason is in ``last_error``; it was asked to all the same,
            unless the process that asks is stuck.

        Schedule point: only if a file is open for writing.
        """
        if not self._serves or not self._open_files.writing:
            return True
        called_s = time.monotonic()
        with trio.move_on_after(limit_s) as scope:
            async with self._lock:
                # A collection that began later, while this one waited, has included it.
                if self._began_s <= called_s:
                    await self._collect()
        if scope.cancelled_caught:
            self._failed(f"the kernel did not hand over everything within {limit_s:g} s")
        return self._collected_s >= called_s

    async def _collect(self) -> None:
        is_quiet = False
        for _ in range(COLLECT_PASSES_MAX):
            self._began_s = time.monotonic()
            before = self._background() - self._barrier.under_way
            try:
                await self._ask()
            except OSError as exc:
                self._failed(f"the kernel was not asked for what it holds: {exc}")
                return
            await self._barrier.passed()
            self._asked_s = self._began_s
            is_quiet = self._background() - before <= COLLECT_QUIET_REQUESTS
            if is_quiet:
                break
        if is_quiet and not self._is_still():
            self._collected_s = self._began_s
            self.last_error = ""
        elif not is_quiet:
            # Requested and in transit; only its end cannot be known.
            self._failed("programs write faster than the kernel hands over")

    def _background(self) -> int:
        """Return how many requests came of the kinds that share a queue with write-back."""
        return self._requests["read"] + self._requests["write"]

    async def _ask(self) -> None:
        """Make one request of the process, which is started if there is none.

        Raises:
            OSError: it failed, or the process ended.
        """
        if self._process is None:
            self._process = CollectingProcess(self._place, self._barrier.name)
        process = self._process
        try:
            await process.ask(self._device)
        except ProcessEndedError as exc:
            ended = exc
        else:
            return
        if self._process is process:
            self._process = None
        await process.end()
        raise ended

    def _failed(self, why: str) -> None:
        if why != self.last_error:
            _log.log(logging.DEBUG if "faster" in why else logging.WARNING, "%s", why)
        self.last_error = why


class ProcessEndedError(OSError):
    """The collecting process ended; the next request starts another."""


class CollectingProcess:
    """One process that collects, and the conversation with it."""

    def __init__(self, place: str, barrier_name: bytes) -> None:
        """Start it. In the main thread: the process ends with the thread that started it.

        Raises:
            OSError: it cannot be started.
        """
        # This process is blocked until execve(2) has read the program, so the program must not lie on
        # our own mount. Not subprocess: it waits until the new process has closed inherited files.
        for path in (os.path.realpath(sys.executable), os.path.realpath(_SCRIPT)):
            if os.path.commonpath([path, place]) == place:
                raise OSError(f"{path} lies below the mountpoint")
        name, parent = os.fsdecode(barrier_name), str(os.getpid())
        command = [sys.executable, "-I", "-S", str(_SCRIPT), place, name, parent]
        environment = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        ours, theirs = socket.socketpair()
        with theirs:
            streams = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), number) for number in (0, 1)]
            # A session of its own: ^C at a foreground mount must reach only the daemon.
            try:
                self.pid = os.posix_spawn(
                    sys.executable, command, environment, file_actions=streams, setsid=True
                )
            except BaseException:
                ours.close()
                raise
        self._socket = trio.socket.from_stdlib_socket(ours)
        self._asked = self._answered = 0
        self._received = b""

    async def ask(self, device: int) -> None:
        """Have it collect once; one caller at a time, who may give up waiting.

        Raises:
            OSError: the kernel refused.
            ProcessEndedError: the process was killed.
        """
        while self._answered < self._asked:  # of a caller that was cancelled
            await self._answer()
        self._asked += 1
        try:
            await self._socket.send(b"%d %d\n" % (self._asked, device))
        except OSError as exc:
            raise ProcessEndedError("the collecting process ended") from exc
        outcome, _, why = (await self._answer()).partition(" ")
        if outcome != "done":
            code, _, text = why.partition(" ")
            raise OSError(int(code), text)

    async def _answer(self) -> str:
        while b"\n" not in self._received:
            try:
                piece = await self._socket.recv(4096)
            except OSError:
                piece = b""
            if not piece:
                raise ProcessEndedError("the collecting process ended")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        number, _, answer = os.fsdecode(line).partition(" ")
        self._answered = int(number)
        return answer

    async def end(self) -> None:
        """Kill it, and wait until it is gone, within a bound.

        It may wait in the kernel for an answer of ours; then it ends with the mount.
        """
        self._socket.close()
        os.kill(self.pid, signal.SIGKILL)
        with trio.move_on_after(COLLECTOR_END_S_MAX, shield=True):
            await trio.to_thread.run_sync(os.waitpid, self.pid, 0, abandon_on_cancel=True)
