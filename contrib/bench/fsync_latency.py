"""The latency of an fsync of a small file while a large file is copied.

The benchmark writes new files of 4 KiB, one after another, and times the fsync of each file. It
does this on an idle filesystem, and while a large file is copied from the disk into the same mount.
The copy ends with an fsync of the large file, so that its data is on the disk. The filesystems take
turns, and the percentiles include all rounds. *Ratio* is the 99th percentile during the copies,
divided by the 99th percentile on the idle filesystem. The disk below the two FUSE filesystems is
also measured, because both must write their data to this disk.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from contrib.bench import awake, local_subjects, samples, sequential, targets
from contrib.bench.names import CEILING, DISK, OURS
from contrib.bench.subjects import Subject, call
from s3fs_meta.limits import KIB, MIB

SMALL: Final = bytes(4 * KIB)
PAUSE_S: Final = 0.002
RATIO_MAX: Final = 10.0


class Taken(NamedTuple):
    """The durations of all fsyncs and all copies on one filesystem, in seconds."""

    idle: list[float]
    copying: list[float]
    copies: list[float]


def run(scratch: Path, *, copy_mib: int, fsyncs: int, rounds: int) -> dict[str, Any]:
    """Measure s3fs-meta, the disk, and the do-nothing filesystem with content in plain files."""
    source = scratch / "large"
    sequential.write_file(source, copy_mib * MIB)
    subjects, _ = local_subjects.available(scratch, (DISK, CEILING, OURS))
    with contextlib.ExitStack() as stack:
        stack.enter_context(awake.paused())
        for subject in subjects:
            stack.enter_context(subject)
        figures = measured(subjects, source, fsyncs, rounds)
    return {"copy_mib": copy_mib, "fsyncs_when_idle": fsyncs * rounds, **figures}


def measured(subjects: Sequence[Subject], source: Path, fsyncs: int, rounds: int) -> dict[str, Any]:
    """Return the latencies on mounted filesystems, and the targets."""
    taken = {subject.name: Taken([], [], []) for subject in subjects}
    for number in range(rounds):
        for subject in samples.rotated(subjects, number):
            _round(subject, source, fsyncs, taken[subject.name])
    table = {name: _figures(found) for name, found in taken.items()}
    return {
        "fsync": table,
        "targets": [
            targets.at_most(f"fsync during a copy, 99 %, of idle, {name}", row["ratio"], RATIO_MAX)
            for name, row in table.items()
            if name == OURS
        ],
    }


def _round(subject: Subject, source: Path, fsyncs: int, taken: Taken) -> None:
    """Measure fsyncs on an idle filesystem, then fsyncs during a copy."""
    place = subject.mountpoint / f"round-{len(taken.copies)}"
    place.mkdir()
    _settle(subject, source)
    taken.idle.extend(_fsync_s(place, "idle", lambda done: done < fsyncs))
    _settle(subject, source)
    start = time.perf_counter()
    command = ["dd", f"if={source}", f"of={place / 'copy'}", "bs=1M", "conv=fsync", "status=none"]
    with subprocess.Popen(command) as copy:
        taken.copying.extend(_fsync_s(place, "busy", lambda _done: copy.poll() is None))
    assert copy.returncode == 0, f"the copy failed with status {copy.returncode}"
    taken.copies.append(time.perf_counter() - start)
    (place / "copy").unlink()


def _settle(subject: Subject, on_disk: Path) -> None:
    """Wait until the filesystem is idle and the disk has written all data."""
    subject.settle()
    call("sync", "--file-system", on_disk)


def _fsync_s(place: Path, name: str, going_on: Callable[[int], bool]) -> list[float]:
    """Write small files until *going_on* returns false; return the seconds of each fsync.

    Args:
        place: the directory of the files.
        name: the prefix of the file names.
        going_on: called after each file with the number of files so far.
    """
    taken: list[float] = []
    while not taken or going_on(len(taken)):
        path = f"{place}/{name}-{len(taken):06}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            os.write(fd, SMALL)
            start = time.perf_counter()
            os.fsync(fd)
            taken.append(time.perf_counter() - start)
        finally:
            os.close(fd)
        time.sleep(PAUSE_S)
    return taken


def _figures(taken: Taken) -> dict[str, Any]:
    """Compute the results of one filesystem from its measured durations."""
    idle, copying = samples.latencies(taken.idle), samples.latencies(taken.copying)
    return {
        "ratio": copying["p99_ms"] / idle["p99_ms"],
        **{f"idle, {key}": value for key, value in idle.items()},
        **{f"copying, {key}": value for key, value in copying.items()},
        "copy, s": samples.summary(taken.copies),
    }
