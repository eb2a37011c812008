"""Collecting dirty pages from the kernel: data that programs wrote to files that are still open.

Owns: the time of the last collection, the process that triggers it, the age of uncollected data.
Does not know: how collected data become durable (``sync.durability``, ``sync.changelog.writer``).

With a write-back cache write(2) ends in the kernel's memory, and mapped pages are always there. The
kernel sends them at close(2), at fsync(2), or when they are 30 s old. The intervals of background
syncs and of cuts must bound the loss by a killed daemon, a power cut or a lost machine. So all
dirty pages are collected before each of these. If no file is open for writing that costs nothing:
the kernel has written back everything at close(2).

One *pass* is a syncfs(2), which starts write-back, and the barrier (``barrier``). Kernels since 2026
do not wait for pages that are already in transit, and skip files while many requests are queued,
so a pass with more than COLLECT_QUIET_REQUESTS requests is followed by another one. Collecting never
takes the lock of a file, so that no writer waits for it.
Source: Linux, fs/fs-writeback.c, sync_inodes_sb; fs/fuse/file.c, fuse_writepages.

Keeps: system calls that wait for the kernel run in another process (``write_back_process``).
Tasks: any may call ``collect``; one collection at a time serves all tasks that wait for it.
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
_INHERITED: Final = ("LD_LIBRARY_PATH", "PATH")  # no variable that could hold a secret


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
            barrier: the file that the handlers of the mount report as opened and released.
            open_files: of the mount.
            requests: the number of requests of each kind; the handlers update it.
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
        """Note the mount point and device; ``collect`` works from then on."""
        self._place, self._device, self._serves = place, device, True

    async def close(self) -> None:
        """Stop collecting, and end the process."""
        self._serves = False
        if self._process is not None:
            process, self._process = self._process, None
            await process.end()

    @property
    def pid(self) -> int | None:
        """Return the process that collects, None if there is none (yet)."""
        return None if self._process is None else self._process.pid

    def figures(self) -> dict[str, Any]:
        """Return the figures for the command ``status``. Schedule point: never."""
        return {
            "open_files": len(self._open_files),
            "open_for_writing": self._open_files.writing,
            "age_s": round(self.age_s(), 3),
            "asked_age_s": round(self.asked_age_s(), 3),
            "collector_pid": self.pid,
            "last_error": self.last_error,
        }

    def age_s(self) -> float:
        """Return the largest possible age of dirty pages in the kernel."""
        return self._age_s(self._collected_s)

    def asked_age_s(self) -> float:
        """Return the time since the last pass: write-back was started, and all queued writes came.

        If programs write without pause, the kernel may have skipped a file while its queue was long.
        So a pass that was not quiet resets this figure, but not ``age_s``.
        """
        return self._age_s(self._asked_s)

    def _age_s(self, done_s: float) -> float:
        since_s = self._open_files.writing_since_s
        if since_s is None or not self._serves:
            return 0.0
        return max(time.monotonic() - max(since_s, done_s), 0.0)

    async def collect(self, limit_s: float = COLLECT_S_MAX) -> bool:
        """Make the kernel send all data that was written before this call.

        Args:
            limit_s: the longest time to wait; then the caller continues without the rest.

        Returns:
            Whether everything was collected. If not, ``last_error`` has the reason; write-back was
            started all the same, unless the collecting process is stuck.

        Schedule point: only if a file is open for writing.
        """
        if not self._serves or not self._open_files.writing:
            return True
        called_s = time.monotonic()
        with trio.move_on_after(limit_s) as scope:
            async with self._lock:
                # A collection that began while this call waited for the lock has included its data.
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
            # Write-back was started; but whether the kernel skipped a file cannot be known.
            self._failed("programs write faster than the kernel hands over")

    def _background(self) -> int:
        """Return the number of requests so far of the kinds that share a queue with write-back."""
        return self._requests["read"] + self._requests["write"]

    async def _ask(self) -> None:
        """Send one request to the collecting process; start the process if there is none.

        Raises:
            OSError: the request failed, or the process ended.
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
    """One collecting process, and the connection to it."""

    def __init__(self, place: str, barrier_name: bytes) -> None:
        """Start the process. Only in the main thread: it ends with the thread that started it.

        Raises:
            OSError: the process cannot be started.
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
            # In a separate session: ^C at a foreground mount must reach only the daemon.
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
        """Let the process collect once. One caller at a time; a caller may be cancelled.

        Raises:
            OSError: the kernel refused.
            ProcessEndedError: the process was killed.
        """
        while self._answered < self._asked:  # skip answers for callers that were cancelled
            await self._answer()
        self._asked += 1
        try:
            await self._socket.send(b"%d %d\n" % (self._asked, device))
        except OSError as exc:
            raise ProcessEndedError("the write-back process ended") from exc
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
                raise ProcessEndedError("the write-back process ended")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        number, _, answer = os.fsdecode(line).partition(" ")
        self._answered = int(number)
        return answer

    async def end(self) -> None:
        """Kill the process, and wait for its end, COLLECTOR_END_S_MAX at most.

        It may be blocked in the kernel by a request to this daemon; then it ends with the mount.
        """
        self._socket.close()
        os.kill(self.pid, signal.SIGKILL)
        with trio.move_on_after(COLLECTOR_END_S_MAX, shield=True):
            await trio.to_thread.run_sync(os.waitpid, self.pid, 0, abandon_on_cancel=True)
