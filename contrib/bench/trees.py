"""The speed of ``s3fs-meta clone`` and ``rm``, compared with ``cp -al`` and ``rm -rf``.

The copy of the past starts from a point in time that is already restored and has no later changes.

The time of a copy is the wall time minus the time of a command that does nothing. The removal
command has two results: its wall time, and its wall time without the start of a Python interpreter.
A removal in the background is timed from the end of the command until statfs(2) no longer counts
any inode of the tree. SQLite's page cache contains all pages of the database. Before a measurement
the kernel drops its dentries of the tree, so that it sends no FORGET requests during the
measurement. In *busy*, a process calls statfs(2) almost without a pause, and the latencies of these
calls are measured. Each call is a request to the daemon, so the copy or removal gets half of the
event loop's time.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from contrib.bench import fill, machine, samples, stall, targets
from contrib.bench.subjects import S3fsSubject, begin, call, call_s

PER_DIRECTORY: Final = 100
NAME_BYTES: Final = 16
SMALL_ENTRIES: Final = 20_000  # Number of entries in the tree for cp -al and rm -rf.
CACHE_BYTES_PER_ENTRY: Final = 300  # Total size of an inode row and a dentry row.
POLL_S: Final = 0.05
IDLE_COMMANDS: Final = 5
REMOVED_PER_S_MIN: Final = 300_000
COPIED_PER_S_MIN: Final = 100_000
REVIVED_PER_S_MIN: Final = 50_000
COMMAND_S_MAX: Final = 0.1
P99_MS_MAX: Final = 50

Figures = dict[str, float]


def run(scratch: Path, *, entries: int) -> dict[str, object]:
    """Measure copies and removals of a tree with *entries* empty files."""
    cache_kib = 4 * entries * CACHE_BYTES_PER_ENTRY // 1024 + 8192
    options = {"cache_size": f"-{cache_kib}", "sync_interval": "3600"}
    subject = S3fsSubject("trees", scratch / "trees", options=options)
    files = entries + SMALL_ENTRIES
    fill.make_filled(subject, files=files, per_directory=PER_DIRECTORY, name_bytes=NAME_BYTES)
    with subject:
        root = subject.mountpoint
        _sort_into_trees(root, {"tree": entries, "small": SMALL_ENTRIES})
        # The find command fills the page cache of SQLite.
        subprocess.run(["find", root, "-size", "+1000000"], check=True)
        idle_s = statistics.median(call_s(*subject.words("status")) for _ in range(IDLE_COMMANDS))
        cp_al = SMALL_ENTRIES / call_s("cp", "-al", root / "small", root / "linked")
        rm_rf = SMALL_ENTRIES / call_s("rm", "-rf", root / "linked")
        machine.drop_kernel_caches(pages=False)
        clones = {name: _clone(subject, name, entries, idle_s) for name in ("quiet", "busy")}
        past = _clone_past(subject, entries, idle_s)
        empty_s = statistics.median(call_s(sys.executable, "-c", "") for _ in range(IDLE_COMMANDS))
        (root / "first").mkdir()
        # The first call is not measured, because it compiles the modules of the command.
        call(*subject.words("rm", paths=[root / "first"]))
        removals = {name: _remove(subject, name, entries, empty_s) for name in ("quiet", "busy")}
    return {
        "entries": entries,
        "cp_al_entries_per_s": cp_al,
        "rm_rf_entries_per_s": rm_rf,
        "clone": clones,
        "clone_at": past,
        "rm": removals,
        "clone_to_cp_al": clones["quiet"]["entries_per_s"] / cp_al,
        "rm_to_rm_rf": removals["quiet"]["entries_per_s"] / rm_rf,
        "targets": _targets(clones, past, removals),
    }


def _targets(
    clones: dict[str, Figures], past: Figures, removals: dict[str, Figures]
) -> list[targets.Target]:
    quiet_copy, quiet_removal = clones["quiet"], removals["quiet"]
    rate = "entries/s"
    return [
        targets.at_least("clone", quiet_copy["entries_per_s"], COPIED_PER_S_MIN, rate),
        targets.at_least("clone --at", past["entries_per_s"], REVIVED_PER_S_MIN, rate),
        targets.at_least("rm", quiet_removal["entries_per_s"], REMOVED_PER_S_MIN, rate),
        targets.at_most(
            "the command rm returns in", quiet_removal["command_s"], COMMAND_S_MAX, "s"
        ),
        targets.at_most("a request during clone, 99 %", clones["busy"]["p99_ms"], P99_MS_MAX, "ms"),
        targets.at_most("a request during rm, 99 %", removals["busy"]["p99_ms"], P99_MS_MAX, "ms"),
    ]


def _sort_into_trees(root: Path, sizes: dict[str, int]) -> None:
    """Move the directories in the root into trees; *sizes* has the number of files of each tree."""
    directories = sorted(path for path in root.iterdir() if path.is_dir())
    for name, files in sizes.items():
        (root / name).mkdir()
        for path in directories[: files // PER_DIRECTORY]:
            path.rename(root / name / path.name)
        directories = directories[files // PER_DIRECTORY :]


def _clone_past(subject: S3fsSubject, files: int, idle_s: float) -> Figures:
    """Clone the tree at a restored point in time that has no later changes."""
    call(*subject.words("flush", paths=[subject.mountpoint]))
    os.stat(subject.mountpoint / ".snapshots" / "newest")
    return _clone(subject, "past", files, idle_s, "--at=newest")


def _clone(subject: S3fsSubject, name: str, files: int, idle_s: float, *options: str) -> Figures:
    """Clone the tree to *name*; return the rates, and the latencies of statvfs during the clone."""
    assert subject.pid is not None, "the filesystem is not mounted"
    subject.rest()
    began_cpu_s = machine.loop_cpu_s(subject.pid)
    began_s = time.perf_counter()
    tree, copy = subject.mountpoint / "tree", subject.mountpoint / name
    command = begin(*subject.words("clone", *options, paths=[tree, copy]))
    pause_s = stall.PAUSE_S if name == "busy" else POLL_S
    taken: list[float] = []
    while command.poll() is None:
        taken.append(samples.seconds(lambda: os.statvfs(subject.mountpoint)))
        time.sleep(pause_s)
    assert command.returncode == 0, "the clone command failed"
    return {
        "entries_per_s": files / (time.perf_counter() - began_s - idle_s),
        "entries_per_loop_cpu_s": files / (machine.loop_cpu_s(subject.pid) - began_cpu_s),
        **samples.latencies(taken),
    }


def _remove(subject: S3fsSubject, name: str, files: int, empty_s: float) -> Figures:
    """Remove the tree *name*, wait for its last inode; return the times, rates and latencies."""
    assert subject.pid is not None, "the filesystem is not mounted"
    subject.rest()
    root = subject.mountpoint
    left = machine.inodes(root) - files - files // PER_DIRECTORY - 1
    began_cpu_s = machine.loop_cpu_s(subject.pid)
    command_s = call_s(*subject.words("rm", paths=[root / name]))
    began_s = time.perf_counter()
    taken: list[float] = []
    while machine.inodes(root) > left:
        taken.append(samples.seconds(lambda: os.statvfs(root)))
        time.sleep(stall.PAUSE_S if name == "busy" else POLL_S)
    figures = {
        "command_s": command_s,
        "beyond_an_empty_program_s": command_s - empty_s,
        "entries_per_s": files / (time.perf_counter() - began_s),
        "entries_per_loop_cpu_s": files / (machine.loop_cpu_s(subject.pid) - began_cpu_s),
    }
    return figures | (samples.latencies(taken) if taken else {})
