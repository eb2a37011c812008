"""Collecting dirty pages from the kernel: data that programs wrote to files that are still open.

Owns: the time of the last collection, the write-back process, the age of uncollected data.
Does not know: how collected data becomes durable (``sync.durability``, ``sync.changelog.writer``).

With a write-back cache, write(2) and writes to mapped pages only reach the kernel's memory.
The kernel sends the dirty pages at close(2), fsync(2) and munmap(2), otherwise usually when they
are 30 s old. The intervals of background syncs and cuts must limit the loss if the daemon is killed
or the machine fails. So dirty pages are collected before each background sync and each cut, and
before a tree is cloned or locked. This costs nothing if no file is open for writing, because the
kernel writes back at close(2).

One *pass* is a syncfs(2), which starts write-back, then the barrier (``barrier``). Kernels since
2026 do not wait for pages that are already in transit, and skip files while many requests are
queued. So after a pass with more than COLLECT_QUIET_REQUESTS requests, another pass follows.
Collecting never locks a file, so no writer waits for it.
Source: Linux, fs/fs-writeback.c, sync_inodes_sb; fs/fuse/file.c, fuse_writepages.

Keeps: system calls that wait for the kernel run in another process (``write_back_process``).
Tasks: any task may call ``collect``; one collection serves all tasks that wait for it.
Design: docs/design/durability.md, "From the kernel to the daemon".
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio

from s3fs_meta.background_task import exit_of
from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.fuse.collection.barrier import Barrier
from s3fs_meta.limits import (
    COLLECT_PASSES_MAX,
    COLLECT_QUIET_REQUESTS,
    COLLECT_S_MAX,
    COLLECTOR_END_S_MAX,
)

_log = logging.getLogger(__name__)

_SCRIPT: Final = Path(__file__).with_name("write_back_process.py")
# The write-back process gets only these environment variables: others may contain a secret.
_INHERITED: Final = ("LD_LIBRARY_PATH", "PATH")


class WriteBack:
    """Collects the dirty pages that the kernel has of one mount."""

    def __init__(
        self,
        barrier: Barrier,
        open_files: OpenFiles,
        requests: Mapping[str, int],
    ) -> None:
        """Prepare the collection of dirty pages; the write-back process is not started yet.

        Args:
            barrier: the barrier of the mount; handlers report each open and each release of it.
            open_files: the open files of the mount.
            requests: the number of requests of each kind, updated by the handlers.
        """
        self._barrier = barrier
        self._open_files = open_files
        self._requests = requests
        self._place = ""
        self._device = 0
        self._process: CollectingProcess | None = None
        self._lock = trio.Lock()
        self._running: set[trio.CancelScope] = set()
        self._serves = False
        self._began_s = self._collected_s = self._asked_s = float("-inf")
        self.last_error = ""

    def begin(self, mountpoint: str, device: int) -> None:
        """Record the mountpoint and the device, so that ``collect`` can be called."""
        self._place, self._device, self._serves = mountpoint, device, True

    async def close(self) -> None:
        """Cancel running collections of dirty pages, and stop the write-back process."""
        self._serves = False
        for scope in self._running:
            scope.cancel()
        if self._process is not None:
            process, self._process = self._process, None
            await process.end()

    @property
    def pid(self) -> int | None:
        """Return the PID of the write-back process, or None if none runs."""
        return None if self._process is None else self._process.pid

    def figures(self) -> dict[str, Any]:
        """Return the values for the command ``status``. Never yields to other tasks."""
        return {
            "open_files": len(self._open_files),
            "open_for_writing": self._open_files.writing,
            "age_s": round(self.age_s(), 3),
            "asked_age_s": round(self.asked_age_s(), 3),
            "collector_pid": self.pid,
            "last_error": self.last_error,
        }

    def age_s(self) -> float:
        """Return the maximum age of dirty pages in the kernel."""
        return self._age_s(self._collected_s)

    def asked_age_s(self) -> float:
        """Return the time since the last pass, even if it was the pass of an incomplete collection.

        If programs write continuously, the kernel may have skipped a file while its queue was
        long. A pass with many requests therefore resets this time, but not ``age_s``.
        """
        return self._age_s(self._asked_s)

    def _age_s(self, done_s: float) -> float:
        since_s = self._open_files.writing_since_s
        if since_s is None or not self._serves:
            return 0.0
        return max(time.monotonic() - max(since_s, done_s), 0.0)

    def why_uncollected(self, age_s: float) -> str:
        """Return why the kernel may have data that is older than *age_s*, or "" if it has none."""
        if self.age_s() <= age_s:
            return ""
        return self.last_error or "the kernel has not sent it yet"

    async def collect(self, limit_s: float = COLLECT_S_MAX) -> bool:
        """Make the kernel send all data that programs wrote before this call.

        Args:
            limit_s: time limit; afterwards the caller continues with incomplete data.

        Returns:
            Whether all data was collected; also True if the mount has ended, because the kernel
            then has no dirty pages. If False, ``last_error`` has the reason, and the kernel still
            writes back, unless the write-back process hangs.

        Yields to other tasks only if a file is open for writing.
        """
        if not self._has_writers():
            return True
        called_s = time.monotonic()
        with trio.move_on_after(limit_s) as scope:
            self._running.add(scope)
            try:
                async with self._lock:
                    # If another collection has started after this call, its result counts.
                    if self._began_s <= called_s:
                        await self._collect()
            finally:
                self._running.discard(scope)
        if not self._serves:
            return True
        if scope.cancelled_caught:
            self._failed(f"the kernel did not write back all dirty pages within {limit_s:g} s")
        return self._collected_s >= called_s

    def _has_writers(self) -> bool:
        return self._serves and self._open_files.writing > 0

    async def _collect(self) -> None:
        is_quiet = False
        for _ in range(COLLECT_PASSES_MAX):
            self._began_s = time.monotonic()
            before = self._background() - self._barrier.under_way
            try:
                await self._ask()
            except OSError as exc:
                self._failed(f"cannot start write-back by the kernel: {exc}")
                return
            await self._barrier.passed()
            self._asked_s = self._began_s
            is_quiet = self._background() - before <= COLLECT_QUIET_REQUESTS
            if is_quiet:
                break
        if is_quiet:
            self._collected_s = self._began_s
            self.last_error = ""
        else:
            # The kernel has started write-back, but may have skipped a file.
            self._failed("programs write faster than the kernel writes back")

    def _background(self) -> int:
        """Return the number of reads and writes, which the kernel sends from a background queue."""
        return self._requests["read"] + self._requests["write"]

    async def _ask(self) -> None:
        """Send one request to the write-back process; start the process if none runs.

        Raises:
            OSError: the request failed, or the process exited.
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
    """The write-back process exited; the next request starts a new process."""


class CollectingProcess:
    """One write-back process, and the daemon's connection to the process."""

    def __init__(self, mountpoint: str, barrier_name: bytes) -> None:
        """Start the process in the main thread, because it exits with the thread that started it.

        Raises:
            OSError: the process cannot be started.
        """
        # The daemon is blocked until execve(2) has read the program.
        # A blocked daemon answers no request, so the program must not be on the daemon's own mount.
        # posix_spawn(3) is used, because subprocess waits until the child has closed inherited files.
        for path in (os.path.realpath(sys.executable), os.path.realpath(_SCRIPT)):
            if os.path.commonpath([path, mountpoint]) == mountpoint:
                raise OSError(
                    f"cannot start the write-back process: {path} lies below the mountpoint"
                )
        name, parent = os.fsdecode(barrier_name), str(os.getpid())
        command = [sys.executable, "-I", "-S", str(_SCRIPT), mountpoint, name, parent]
        environment = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        ours, theirs = socket.socketpair()
        with theirs:
            streams = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), number) for number in (0, 1)]
            # In a separate session, the process does not get the ^C of a foreground mount.
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
        """Make the process collect dirty pages once, for one caller. The call may be cancelled.

        Raises:
            OSError: the kernel refused.
            ProcessEndedError: the process was killed.
        """
        while self._answered < self._asked:  # skip replies to cancelled calls
            await self._answer()
        number = self._asked + 1
        try:
            await self._socket.send(b"%d %d\n" % (number, device))
        except OSError as exc:
            raise ProcessEndedError("the write-back process exited before the request") from exc
        self._asked = number  # a call that was cancelled earlier has sent nothing
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
                raise ProcessEndedError("the write-back process exited without a reply")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        number, _, answer = os.fsdecode(line).partition(" ")
        self._answered = int(number)
        return answer

    async def end(self) -> None:
        """Kill the process, and wait at most COLLECTOR_END_S_MAX for its exit.

        A process that waits in the kernel for this daemon exits only when the mount ends.
        """
        self._socket.close()
        os.kill(self.pid, signal.SIGKILL)
        with trio.CancelScope(shield=True):
            await exit_of(self.pid, COLLECTOR_END_S_MAX)
