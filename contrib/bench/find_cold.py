"""find over many entries after the kernel dropped its caches, under WAL and under no journal.

The two mounts take turns; the figure is the median of the turns' ratios.
"""

import statistics
import subprocess
import time
from pathlib import Path
from typing import Final

from contrib.bench import machine, samples, targets
from contrib.bench.subjects import S3fsSubject

SLOWER_MAX: Final = 1.15
FILES_PER_DIRECTORY: Final = 1000
SUBJECTS: Final = {"wal": {"journal_mode": "wal"}, "off": {"journal_mode": "off"}}


def run(scratch: Path, *, entries: int, rounds: int) -> dict[str, object]:
    """Make the same tree twice, search both in turns and return the figures."""
    subjects = [
        S3fsSubject(name, scratch / name, options=options) for name, options in SUBJECTS.items()
    ]
    for subject in subjects:
        subject.make()
        with subject:
            make_tree(subject.mountpoint, entries)
    wall: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    cpu: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    with subjects[0], subjects[1]:
        for subject in subjects:
            search(subject, entries)  # SQLite's own page cache is not what is dropped
        for number in range(rounds):
            for subject in subjects if number % 2 == 0 else reversed(subjects):
                wall_s, cpu_s = search(subject, entries)
                wall[subject.name].append(wall_s)
                cpu[subject.name].append(cpu_s)
    figure = statistics.median(
        with_wal / without for with_wal, without in zip(wall["wal"], wall["off"], strict=True)
    )
    return {
        "entries": entries,
        **{
            name: {
                "seconds": samples.summary(wall[name]),
                "daemon_cpu_seconds": samples.summary(cpu[name]),
            }
            for name in SUBJECTS
        },
        "slower": figure,
        "targets": [targets.at_most("time under wal against off", figure, SLOWER_MAX, "times")],
    }


def make_tree(root: Path, entries: int) -> None:
    """Create *entries* names below *root*: directories of a thousand empty files."""
    for start in range(0, entries, FILES_PER_DIRECTORY):
        directory = root / f"directory-{start:06d}"
        directory.mkdir()
        for number in range(start + 1, min(start + FILES_PER_DIRECTORY, entries)):
            (directory / f"file-{number:011d}").touch()


def search(subject: S3fsSubject, entries: int) -> tuple[float, float]:
    """Return how long find takes that needs the attributes of every entry, and the daemon's time."""
    assert subject.pid is not None, "the subject is mounted"
    machine.drop_kernel_caches()
    machine.settle(subject.pid)
    cpu_before_s = machine.cpu_s(subject.pid)
    start = time.perf_counter()
    done = subprocess.run(
        ["find", str(subject.mountpoint), "-mindepth", "1", "-size", "-1000000", "-printf", "."],
        capture_output=True,
        check=True,
    )
    taken_s = time.perf_counter() - start
    assert len(done.stdout) == entries, f"find saw {len(done.stdout)} of {entries} entries"
    return taken_s, machine.cpu_s(subject.pid) - cpu_before_s
