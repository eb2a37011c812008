"""Files written, read and removed in any directory, and how long each took.

Owns: a directory of its own there, which it removes however it ends. Does not know: what kind of
filesystem it is on, how results are shown.
Content is random and nowhere twice, so that nothing compresses and nothing is deduplicated.
"""

import contextlib
import os
import shutil
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta.limits import BENCH_LOOK_S, MIB

PREFIX: Final = ".s3fs-meta-bench-"
_DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_STAMP_BYTES: Final = 16

Steps = Generator[int, None, None]
Report = Callable[[str, int, int], None]  # what, done, total


class Sizes(NamedTuple):
    """How much is done; each thread has its own large file and its own small ones."""

    big_bytes: int  # 0: no large files
    block_bytes: int  # of each read and write of a large file
    small_bytes: int
    files: int  # 0: no small ones
    threads: int

    @property
    def needed_bytes(self) -> int:
        """Return what lies there at once."""
        return self.threads * (self.big_bytes + self.files * self.small_bytes)


class Result(NamedTuple):
    """Time and counts of one phase, over all threads."""

    what: str
    operations: int
    size_bytes: int  # read or written
    seconds: float
    latencies_s: Sequence[float]  # ascending, one for each operation


class _Phase(NamedTuple):
    what: str
    steps: Callable[[int], Steps]  # of one thread: does an operation, yields its bytes
    operations: int  # of one thread
    cold: bool = False  # begins with kernel caches dropped, if that is possible


def can_drop_caches() -> bool:
    """Return whether reading can be made to ask the filesystem instead of the kernel's memory."""
    return os.access(_DROP_CACHES, os.W_OK)


class Workload:
    """One run in a directory."""

    def __init__(self, parent: Path, sizes: Sizes, report: Report) -> None:
        self._parent = parent
        self._sizes = sizes
        self._report = report
        self._stop = threading.Event()
        self._folder = parent  # set by run

    def run(self) -> list[Result]:
        """Do everything and remove it.

        Raises:
            OSError: the filesystem refused something.
        """
        self._folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._parent))
        try:
            for thread in range(self._sizes.threads):
                self._of(thread).mkdir()
            with ThreadPoolExecutor(self._sizes.threads) as pool:
                return [self._measured(phase, pool) for phase in self._phases()]
        finally:
            shutil.rmtree(self._folder)

    def _phases(self) -> list[_Phase]:
        blocks, files = self._sizes.big_bytes // self._sizes.block_bytes, self._sizes.files
        big = [
            _Phase("write big files", self._write_big, blocks + 1),
            _Phase("read big files", self._read_big, blocks, cold=True),
        ]
        small = [
            _Phase("write small files", self._write_small, files),
            _Phase("read small files", self._read_small, files, cold=True),
            _Phase("stat", self._stat, files, cold=True),
            _Phase("create empty files", self._create, files),
            _Phase("unlink", self._unlink, files),
        ]
        return (big if blocks else []) + (small if files else [])

    def _measured(self, phase: _Phase, pool: ThreadPoolExecutor) -> Result:
        if phase.cold and can_drop_caches():
            os.sync()
            _DROP_CACHES.write_text("3")
        threads = range(self._sizes.threads)
        taken = [array("d") for _ in threads]
        start = time.perf_counter()
        futures = [pool.submit(self._work, phase, thread, taken[thread]) for thread in threads]
        try:
            self._wait(phase, futures, taken)
        finally:
            self._stop.set()
            wait(futures)
            self._stop.clear()
        seconds = time.perf_counter() - start
        size_bytes = sum(future.result() for future in futures)
        latencies_s = sorted(one for each in taken for one in each)
        return Result(phase.what, len(latencies_s), size_bytes, seconds, latencies_s)

    def _wait(
        self, phase: _Phase, futures: Sequence[Future[int]], taken: Sequence["array[float]"]
    ) -> None:
        """Wait for all, or for the first that fails."""
        total = phase.operations * len(futures)
        left = set(futures)
        while left:
            done, left = wait(left, timeout=BENCH_LOOK_S)
            for future in done:
                future.result()
            self._report(phase.what, sum(map(len, taken)), total)

    def _work(self, phase: _Phase, thread: int, taken: "array[float]") -> int:
        """Go through the steps of a phase until they end or all shall stop; return the bytes."""
        size_bytes = 0
        with contextlib.closing(phase.steps(thread)) as steps:
            before_s = time.perf_counter()
            for step_bytes in steps:
                now_s = time.perf_counter()
                taken.append(now_s - before_s)
                before_s = now_s
                size_bytes += step_bytes
                if self._stop.is_set():
                    break
        return size_bytes

    # --- phases --------------------------------------------------------------------------------

    def _of(self, thread: int) -> Path:
        return self._folder / str(thread)

    def _paths(self, thread: int, kind: str) -> Iterator[str]:
        return (f"{self._of(thread)}/{kind}-{number}" for number in range(self._sizes.files))

    def _write_big(self, thread: int) -> Steps:
        """Write block by block; the last operation is the fsync."""
        content = bytearray(os.urandom(self._sizes.block_bytes))
        with (self._of(thread) / "big").open("xb", buffering=0) as file:
            for _ in range(self._sizes.big_bytes // len(content)):
                _stamp(content)
                _write(file.fileno(), content)
                yield len(content)
            os.fsync(file.fileno())
            yield 0

    def _read_big(self, thread: int) -> Steps:
        buffer = bytearray(self._sizes.block_bytes)
        with (self._of(thread) / "big").open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                yield count

    def _write_small(self, thread: int) -> Steps:
        content = bytearray(os.urandom(self._sizes.small_bytes))
        for path in self._paths(thread, "small"):
            _stamp(content)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                _write(descriptor, content)
            finally:
                os.close(descriptor)
            yield len(content)

    def _read_small(self, thread: int) -> Steps:
        for path in self._paths(thread, "small"):
            with open(path, "rb", buffering=0) as file:
                yield len(file.readall())

    def _stat(self, thread: int) -> Steps:
        for path in self._paths(thread, "small"):
            os.stat(path)
            yield 0

    def _create(self, thread: int) -> Steps:
        for path in self._paths(thread, "empty"):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            yield 0

    def _unlink(self, thread: int) -> Steps:
        for path in self._paths(thread, "empty"):
            os.unlink(path)
            yield 0


def _stamp(content: bytearray) -> None:
    """Make each MiB of *content* one that was never there before."""
    for start in range(0, len(content), MIB):
        stamp = os.urandom(min(_STAMP_BYTES, len(content) - start))
        content[start : start + len(stamp)] = stamp


def _write(descriptor: int, content: bytearray) -> None:
    with memoryview(content) as view:
        done = 0
        while done < len(view):
            done += os.write(descriptor, view[done:])
