"""Whole trees: ``s3fs-meta rm`` and its background against ``rm -rf``, on one mount in one run.

The command: wall time beyond that of a command that does nothing. The background: from the end of
the command until statfs counts no inode of the tree any more; the database's page cache holds
everything. With ``probes`` somebody asks statvfs(2) all the time, each of which is a request, so
that the latencies are those of a request, and the background gets half of the daemon's loop.
"""

import os
import statistics
import subprocess
import time
from pathlib import Path
from typing import Final

from contrib.bench import fill, machine, stall
from contrib.bench.subjects import PROJECT, S3fsSubject, environment, program

PER_DIRECTORY: Final = 100
NAME_BYTES: Final = 16
SMALL_ENTRIES: Final = 20_000  # for the programs that go one by one
CACHE_BYTES_PER_ENTRY: Final = 300  # inode, dentry and what is recorded of them
LOOK_S: Final = 0.05
IDLE_COMMANDS: Final = 5
REMOVED_PER_S_MIN: Final = 300_000
COMMAND_S_MAX: Final = 0.1
P99_MS_MAX: Final = 50

Figures = dict[str, float]


def run(scratch: Path, *, entries: int) -> dict[str, object]:
    """Measure on trees of *entries* empty files and their directories."""
    cache_kib = 4 * entries * CACHE_BYTES_PER_ENTRY // 1024 + 8192
    options = {"cache_size": f"-{cache_kib}", "sync_interval": "3600"}
    subject = S3fsSubject("trees", scratch / "trees", options=options)
    files = 2 * entries + SMALL_ENTRIES
    fill.make_filled(subject, files=files, per_directory=PER_DIRECTORY, name_bytes=NAME_BYTES)
    with subject:
        root = subject.mountpoint
        _sort_into_trees(root, {"quiet": entries, "busy": entries, "small": SMALL_ENTRIES})
        subprocess.run(["find", root, "-size", "+1000000"], check=True)  # fills the page cache
        idle_s = statistics.median(_call(subject, "status", root) for _ in range(IDLE_COMMANDS))
        one_by_one = _remove_one_by_one(root / "small")
        quiet = _remove(subject, "quiet", entries, idle_s, probes=False)
        busy = _remove(subject, "busy", entries, idle_s, probes=True)
    return {
        "entries": entries,
        "rm_rf_entries_per_s": one_by_one,
        "quiet": quiet,
        "busy": busy,
        "rm_to_rm_rf": quiet["entries_per_s"] / one_by_one,
        "met": quiet["entries_per_s"] >= REMOVED_PER_S_MIN
        and quiet["command_s"] <= COMMAND_S_MAX
        and busy["p99_ms"] <= P99_MS_MAX,
    }


def _sort_into_trees(root: Path, sizes: dict[str, int]) -> None:
    """Move the directories of the root into trees of so many files."""
    directories = sorted(path for path in root.iterdir() if path.is_dir())
    for name, files in sizes.items():
        (root / name).mkdir()
        for path in directories[: files // PER_DIRECTORY]:
            path.rename(root / name / path.name)
        directories = directories[files // PER_DIRECTORY :]


def _remove_one_by_one(tree: Path) -> float:
    """Return how many entries a second ``rm -rf`` removes."""
    began_s = time.perf_counter()
    subprocess.run(["rm", "-rf", tree], check=True)
    return SMALL_ENTRIES / (time.perf_counter() - began_s)


def _remove(subject: S3fsSubject, name: str, files: int, idle_s: float, *, probes: bool) -> Figures:
    """Remove a tree and wait until nothing is left of it."""
    assert subject.pid is not None, "it is mounted"
    machine.settle(subject.pid)
    root = subject.mountpoint
    left = _inodes(root) - files - files // PER_DIRECTORY - 1
    began_cpu_s = machine.cpu_s(subject.pid)
    command_s = _call(subject, "rm", root / name) - idle_s
    began_s = time.perf_counter()
    taken: list[float] = []
    while True:
        asked_s = time.perf_counter()
        if _inodes(root) <= left:
            break
        taken.append(time.perf_counter() - asked_s)
        time.sleep(stall.PAUSE_S if probes else LOOK_S)
    figures = {
        "command_s": max(command_s, 0.0),
        "entries_per_s": files / (time.perf_counter() - began_s),
        "entries_per_cpu_s": files / (machine.cpu_s(subject.pid) - began_cpu_s),
    }
    return figures | (stall.latencies(taken) if taken else {})


def _inodes(root: Path) -> int:
    figures = os.statvfs(root)
    return figures.f_files - figures.f_ffree


def _call(subject: S3fsSubject, command: str, path: Path) -> float:
    """Run a command; return how long it took."""
    began_s = time.perf_counter()
    subprocess.run(
        [*program(), command, path, "--cachedir", subject.state],
        env=environment(),
        cwd=PROJECT,
        check=True,
        capture_output=True,
    )
    return time.perf_counter() - began_s
