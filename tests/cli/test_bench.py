"""The bench command, which measures the speed of a directory."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3fs_meta.cli import entry
from s3fs_meta.cli.bench import PREFIX, BenchSizes, Workload, the_mount
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import UsageError
from s3fs_meta.limits import KIB, MIB
from s3fs_meta.mount.existing import mount_table
from s3fs_meta.mount.existing.mount_table import Mounted
from tests.cli.conftest import Place
from tests.page_cache import locked_page_cache
from tests.polling import PROCESS_S_MAX, wait_until
from tests.programs import ROOT, Program

pytestmark = pytest.mark.thorough

SMALL = ("--big-size", "1M", "--files", "3")
SIZES = BenchSizes(big_bytes=2 * MIB, block_bytes=MIB, small_bytes=KIB, files=5, threads=3)


@pytest.fixture(autouse=True)
def page_cache() -> Iterator[None]:
    """Hold the shared lock that allows the bench command to drop the page cache of the machine."""
    with locked_page_cache(is_exclusive=False):
        yield


def test_bench_command_prints_a_row_for_each_measurement(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The bench command measures any directory. It leaves no files and restores signal handlers."""
    before = signal.getsignal(signal.SIGINT)
    assert entry.main(["bench", *SMALL, "--threads", "2", str(tmp_path)]) == 0
    assert signal.getsignal(signal.SIGINT) is before

    out = capfd.readouterr().out
    for what in ("write big", "read big", "write small", "read small", "stat", "create", "unlink"):
        assert what in out
    assert "MiB" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mount
def test_bench_command_on_a_mount_leaves_no_file(program: Program, mounted: Place) -> None:
    """The JSON output of bench has seven results, and no file remains on the mount."""
    done = program.ok("bench", "--json", *SMALL, mounted.mountpoint, here=False)
    figures = json.loads(done)

    assert figures["path"] == str(mounted.mountpoint)
    assert figures["threads"] == 1
    assert [one["operations"] for one in figures["results"]] == [2, 1, 3, 3, 3, 3, 3]
    for one in figures["results"]:
        assert one["operations_per_s"] > 0
        assert one["median_ms"] <= one["p99_ms"] <= one["max_ms"]
    assert list(mounted.mountpoint.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["/etc/hostname"], "/etc/hostname is not a directory"),
        (["--big-size", "much", "."], "--big-size"),
        (["--block-size", "0", "."], "--block-size"),
        (["--block-size", "65M", "."], "--block-size"),
        (["--big-size", "1500K", "."], "--big-size"),
        (["--small-size", "1G", "."], "--small-size"),
        (["--threads", "0", "."], "--threads"),
        (["--files", "-1", "."], "--files"),
        (["--big-size", "0", "--files", "0", "."], "nothing to measure"),
        (["--big-size", "1024T", "."], "not enough free space"),
    ],
)
def test_bench_command_with_invalid_arguments_prints_one_error_line(
    words: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(["bench", *words]) == ExitStatus.USAGE

    err = capfd.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_bench_command_without_a_path_uses_the_only_mount() -> None:
    """If several filesystems are mounted, bench requires a directory as its argument."""
    ours = [Mounted(path, "0:1", mount_table.FS_TYPE, "local:///b") for path in ("/a", "/b")]
    other = Mounted("/c", "0:2", "ext4", "/dev/sda")

    assert the_mount([other, ours[0]]) == Path("/a")
    for mounts, says in ((ours, "/a, /b"), ([other], "no s3fs-meta filesystem is mounted")):
        with pytest.raises(UsageError, match=says):
            the_mount(mounts)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_bench_removes_its_files(tmp_path: Path, number: signal.Signals) -> None:
    """SIGINT, SIGTERM and the end of the terminal make bench remove all of its files."""
    words = ["bench", "--big-size", "0", "--files", "1000000", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "s3fs_meta", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            wait_until(
                lambda: list(tmp_path.glob(f"{PREFIX}*/0/small-1")), "bench did not start in time"
            )
            process.send_signal(number)
            _, err = process.communicate(timeout=PROCESS_S_MAX)
        finally:
            process.kill()  # kill() does nothing if the process has exited.

    assert process.returncode == ExitStatus.INTERRUPTED
    assert err == "s3fs-meta: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def _nothing(_what: str, _done: int, _total: int) -> None:
    pass


def test_each_bench_phase_counts_the_operations_of_all_threads(tmp_path: Path) -> None:
    results = {one.what: one for one in Workload(tmp_path, SIZES, _nothing).run()}

    done = {what: (one.operations, one.size_bytes) for what, one in results.items()}
    assert done == {
        "write big files": (3 * (2 + 1), 6 * MIB),  # Each file takes two writes and one fsync.
        "read big files": (3 * 2, 6 * MIB),
        "write small files": (15, 15 * KIB),
        "read small files": (15, 15 * KIB),
        "stat": (15, 0),
        "create empty files": (15, 0),
        "unlink": (15, 0),
    }
    for one in results.values():
        assert len(one.latencies_s) == one.operations
        assert list(one.latencies_s) == sorted(one.latencies_s)
        assert sum(one.latencies_s) <= one.seconds * SIZES.threads
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("big_bytes", "files"), [(0, 2), (MIB, 0)])
def test_bench_command_skips_phases_that_have_no_files(
    tmp_path: Path, big_bytes: int, files: int
) -> None:
    """A size of 0 skips the large files, and a count of 0 skips the small files."""
    sizes = SIZES._replace(big_bytes=big_bytes, files=files)
    found = [one.what for one in Workload(tmp_path, sizes, _nothing).run()]

    assert any("big" in what for what in found) == bool(big_bytes)
    assert ("stat" in found) == bool(files)


def test_bench_command_writes_different_content_to_every_file(tmp_path: Path) -> None:
    """All files of bench differ, because identical content would be deduplicated."""
    seen: list[bytes] = []

    def look(what: str, done: int, total: int) -> None:
        if what == "create empty files" and done == total:
            seen.extend(path.read_bytes() for path in tmp_path.glob(f"{PREFIX}*/*/small-*"))
            for path in tmp_path.glob(f"{PREFIX}*/*/big"):
                data = path.read_bytes()
                seen.extend((data[:MIB], data[MIB:]))

    Workload(tmp_path, SIZES, look).run()

    assert len(set(seen)) == len(seen) == 15 + 6


def test_interrupted_bench_command_stops_all_threads_and_leaves_no_file(tmp_path: Path) -> None:
    before = threading.active_count()

    def interrupt(what: str, _done: int, _total: int) -> None:
        if what == "read small files":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Workload(tmp_path, SIZES, interrupt).run()

    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() <= before  # Idle threads of trio exit after some time.


def test_bench_command_interrupted_before_its_first_thread_leaves_no_file(tmp_path: Path) -> None:
    """An interrupt before the first thread starts raises KeyboardInterrupt and leaves no file."""
    sizes = BenchSizes(big_bytes=0, block_bytes=KIB, small_bytes=KIB, files=1 << 40, threads=2)
    workload = Workload(tmp_path, sizes, lambda *_: None)
    workload.stop()

    with pytest.raises(KeyboardInterrupt):
        workload.run()

    assert list(tmp_path.iterdir()) == []


def test_failed_bench_thread_stops_all_other_threads(tmp_path: Path) -> None:
    """If a thread of bench fails, bench raises the thread's error, and no file remains."""

    def spoil(what: str, done: int, total: int) -> None:
        if what == "write big files" and done == total:
            [folder] = tmp_path.iterdir()
            (folder / "1" / "small-3").mkdir()

    with pytest.raises(FileExistsError):
        Workload(tmp_path, SIZES, spoil).run()

    assert list(tmp_path.iterdir()) == []
