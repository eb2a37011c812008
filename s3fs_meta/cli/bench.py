"""``s3fs-meta bench``: measure the speed of a directory."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.cli.limits import (
    BENCH_BLOCK_BYTES_MAX,
    BENCH_FILES_MAX,
    BENCH_POLL_S,
    BENCH_THREADS_MAX,
)
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import MIB
from s3fs_meta.mount.existing import mount_table, targets
from s3fs_meta.mount.existing.mount_table import Mounted
from s3fs_meta.options.option_syntax import parse_size

HELP = CommandHelp(
    name="bench",
    summary="Measure the speed of a directory: large files, small files, names.",
    description=(
        "Writes and reads large files, writes and reads small files, reads their attributes, and "
        "creates and removes empty files. Every thread has its own files. They are in a new "
        "directory in PATH, which the command removes at the end, even if it is interrupted. "
        "PATH may be on any filesystem; the default is the only s3fs-meta mount of this host.",
        "Writing a large file includes its fsync. Before reading, root drops the kernel's caches "
        "of the whole machine; for other users, reads may come from these caches. On a mount, "
        "the written files are uploaded to the bucket like all others.",
    ),
    examples=(
        Example("s3fs-meta bench /mnt/home", "measure a mounted filesystem"),
        Example("s3fs-meta bench /var/tmp", "measure the local disk for comparison"),
        Example(
            "s3fs-meta bench --big-size 0 --files 10000 --threads 4 /mnt/home",
            "measure only small files, with four threads",
        ),
    ),
    exits=exits_of(ExitStatus.CONTROL),
)
PREFIX: Final = ".s3fs-meta-bench-"
_DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_STAMP_BYTES: Final = 16

Steps = Generator[int, None, None]
# Function that reports progress: name of the phase, completed operations, total operations.
Report = Callable[[str, int, int], None]


class BenchSizes(NamedTuple):
    """The sizes and numbers of files; each thread has its own large file and small files."""

    big_bytes: int  # size of each large file; 0 means no large files
    block_bytes: int  # size of each read or write of a large file
    small_bytes: int
    files: int  # number of small files per thread; 0 means no small files
    threads: int

    @property
    def needed_bytes(self) -> int:
        """Return the maximum disk space that the files of the benchmark need."""
        return self.threads * (self.big_bytes + self.files * self.small_bytes)


class Result(NamedTuple):
    """The measured time of one phase, and its counts summed over all threads."""

    what: str
    operations: int
    size_bytes: int  # number of bytes that the phase read or wrote
    seconds: float
    latencies_s: Sequence[float]  # latencies of all operations, in ascending order


class _Phase(NamedTuple):
    what: str
    # Function that runs the operations of one thread; yields the byte count after each operation.
    steps: Callable[[int], Steps]
    operations: int  # number of operations per thread
    cold: bool = False  # drop the kernel's caches before the phase, if root runs bench


def can_drop_caches() -> bool:
    """Return whether this process may drop the kernel's caches."""
    return os.access(_DROP_CACHES, os.W_OK)


class Workload:
    """One run of all phases of the benchmark in a directory."""

    def __init__(self, parent: Path, sizes: BenchSizes, report: Report) -> None:
        self._parent = parent
        self._sizes = sizes
        self._report = report
        self._stop = threading.Event()
        self._folder = parent  # run() replaces the value with a temporary directory

    def stop(self) -> None:
        """End the run after the current operations; a signal handler may call this method."""
        self._stop.set()

    def run(self) -> list[Result]:
        """Run all phases, then remove the files.

        Raises:
            OSError: an operation on the filesystem failed.
            KeyboardInterrupt: ``stop`` was called.
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
        except BaseException:
            self._stop.set()
            raise
        finally:
            wait(futures)
        if self._stop.is_set():
            raise KeyboardInterrupt
        seconds = time.perf_counter() - start
        size_bytes = sum(future.result() for future in futures)
        latencies_s = sorted(one for each in taken for one in each)
        return Result(phase.what, len(latencies_s), size_bytes, seconds, latencies_s)

    def _wait(
        self, phase: _Phase, futures: Sequence[Future[int]], taken: Sequence["array[float]"]
    ) -> None:
        """Wait until all threads of a phase have ended, or until one fails."""
        total = phase.operations * len(futures)
        left = set(futures)
        while left:
            done, left = wait(left, timeout=BENCH_POLL_S)
            for future in done:
                future.result()
            self._report(phase.what, sum(map(len, taken)), total)

    def _work(self, phase: _Phase, thread: int, taken: "array[float]") -> int:
        """Run the steps of a phase until ``stop`` is called; return the number of bytes."""
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

    # --- phases of the benchmark ---------------------------------------------------------------

    def _of(self, thread: int) -> Path:
        return self._folder / str(thread)

    def _paths(self, thread: int, kind: str) -> Iterator[str]:
        return (f"{self._of(thread)}/{kind}-{number}" for number in range(self._sizes.files))

    def _write_big(self, thread: int) -> Steps:
        """Write a large file block by block, then fsync it."""
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
    """Make each MiB of *content* unique by random bytes, to prevent deduplication."""
    for start in range(0, len(content), MIB):
        stamp = os.urandom(min(_STAMP_BYTES, len(content) - start))
        content[start : start + len(stamp)] = stamp


def _write(descriptor: int, content: bytearray) -> None:
    with memoryview(content) as view:
        done = 0
        while done < len(view):
            done += os.write(descriptor, view[done:])


def bench(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[PATH]", help="Directory to measure."),
    ] = None,
    big_size: Annotated[
        str,
        typer.Option(
            "--big-size", metavar="SIZE", help="Size of each large file; 0 means no large files."
        ),
    ] = "1G",
    block_size: Annotated[
        str,
        typer.Option(
            "--block-size", metavar="SIZE", help="Size of each read or write of a large file."
        ),
    ] = "1M",
    small_size: Annotated[
        str, typer.Option("--small-size", metavar="SIZE", help="Size of each small file.")
    ] = "4K",
    files: Annotated[
        int,
        typer.Option(
            "--files",
            metavar="N",
            min=0,
            max=BENCH_FILES_MAX,
            help="Number of small files per thread, and also of empty files; 0 means none.",
        ),
    ] = 1000,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            max=BENCH_THREADS_MAX,
            help="Number of threads that read and write in parallel.",
        ),
    ] = 1,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta bench``: measure the speed of a directory."""
    sizes = BenchSizes(
        big_bytes=parse_size("--big-size", big_size, "1G"),
        block_bytes=parse_size("--block-size", block_size, "1M"),
        small_bytes=parse_size("--small-size", small_size, "4K"),
        files=files,
        threads=threads,
    )
    where = path or the_mount(mount_table.read())
    _check(where, sizes)
    with TerminalFront(quiet=json) as front:
        workload = Workload(where, sizes, front.progress)
        # The signal handler only sets a flag: an exception could leave a thread that is not joined.
        with _handled(workload.stop):
            results = workload.run()
    if json:
        output.print_json(_facts(where, sizes, results))
        return
    if not can_drop_caches():
        output.print_text("kernel caches were not dropped: reads may come from memory")
    output.print_columns(COLUMNS, [_row(result) for result in results])


@contextlib.contextmanager
def _handled(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function on SIGINT, SIGTERM and SIGHUP for the duration of a context."""
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup(1) ignores SIGHUP
    ]
    before = [signal.signal(number, lambda *_: stop()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


COLUMNS = ("", "total", "per second", "median", "99 %", "longest")


def the_mount(mounts: Iterable[Mounted]) -> Path:
    """Return the mountpoint of the only mounted s3fs-meta filesystem.

    Raises:
        UsageError: no s3fs-meta filesystem is mounted, or several are.
    """
    found = [one.mountpoint for one in mounts if one.fs_type == mount_table.FS_TYPE]
    if len(found) != 1:
        several = f"several s3fs-meta filesystems are mounted ({', '.join(found)})"
        which = several if found else "no s3fs-meta filesystem is mounted"
        raise UsageError(f"{which}; give bench the directory to measure as an argument")
    return Path(found[0])


def _check(where: Path, sizes: BenchSizes) -> None:
    """Check the sizes and the directory.

    Raises:
        UsageError: a size is invalid, or the directory has too little space.
        SilentDaemonError: the directory is in a mount whose daemon does not answer.
    """
    targets.require_answers([where])
    if not where.is_dir():
        raise UsageError(f"the path {where} is not a directory")
    if not 0 < sizes.block_bytes <= BENCH_BLOCK_BYTES_MAX:
        raise UsageError(
            f"--block-size must be from 1 byte to {output.human_bytes(BENCH_BLOCK_BYTES_MAX)}"
        )
    if sizes.big_bytes % sizes.block_bytes:
        raise UsageError("--big-size must be a multiple of --block-size")
    if sizes.small_bytes > BENCH_BLOCK_BYTES_MAX:
        raise UsageError(
            f"--small-size must be at most {output.human_bytes(BENCH_BLOCK_BYTES_MAX)}"
        )
    if not sizes.big_bytes and not sizes.files:
        raise UsageError("nothing to measure: both --big-size and --files are 0")
    figures = os.statvfs(where)
    free_bytes = figures.f_bavail * figures.f_frsize
    if sizes.needed_bytes > free_bytes:
        needed, free = map(output.human_bytes, (sizes.needed_bytes, free_bytes))
        raise UsageError(f"not enough free space in {where}: {free} available, {needed} needed")


def _at(result: Result, part: float) -> float:
    """Return a percentile of the measured latencies, in milliseconds."""
    last = len(result.latencies_s) - 1
    return result.latencies_s[min(int(last * part + 0.5), last)] * 1e3


def _row(result: Result) -> list[str]:
    if result.what.endswith("big files"):
        amount = output.human_bytes(result.size_bytes)
        rate = f"{result.size_bytes / MIB / result.seconds:,.0f} MiB"
    else:
        amount = f"{result.operations:,}"
        rate = f"{result.operations / result.seconds:,.0f}"
    times = (f"{output.human_number(_at(result, part))} ms" for part in (0.5, 0.99, 1.0))
    return [result.what, amount, rate, *times]


def _facts(where: Path, sizes: BenchSizes, results: list[Result]) -> dict[str, Any]:
    return {
        "path": str(where),
        **sizes._asdict(),
        "caches_dropped": can_drop_caches(),
        "results": [
            {
                "what": result.what,
                "operations": result.operations,
                "size_bytes": result.size_bytes,
                "seconds": result.seconds,
                "operations_per_s": result.operations / result.seconds,
                "mib_per_s": result.size_bytes / MIB / result.seconds,
                "median_ms": _at(result, 0.5),
                "p99_ms": _at(result, 0.99),
                "max_ms": _at(result, 1.0),
            }
            for result in results
        ],
    }
