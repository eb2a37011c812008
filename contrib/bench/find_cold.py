"""find over many entries after the kernel dropped its caches, under WAL and under no journal."""

import subprocess
import time
from pathlib import Path
from typing import Final

from contrib.bench import machine, samples
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
    seconds: dict[str, list[float]] = {name: [] for name in SUBJECTS}
    with subjects[0], subjects[1]:
        for number in range(rounds):
            for subject in subjects if number % 2 == 0 else reversed(subjects):
                seconds[subject.name].append(search_s(subject, entries))
    figure = 1 / samples.ratio(seconds["off"], seconds["wal"])
    return {
        "entries": entries,
        **{name: {"seconds": samples.summary(values)} for name, values in seconds.items()},
        "slower": figure,
        "slower_max": SLOWER_MAX,
        "met": figure <= SLOWER_MAX,
    }


def make_tree(root: Path, entries: int) -> None:
    """Create *entries* names below *root*: directories of a thousand empty files."""
    for start in range(0, entries, FILES_PER_DIRECTORY):
        directory = root / f"directory-{start:06d}"
        directory.mkdir()
        for number in range(start + 1, min(start + FILES_PER_DIRECTORY, entries)):
            (directory / f"file-{number:011d}").touch()


def search_s(subject: S3fsSubject, entries: int) -> float:
    """Return how long find takes when it needs the attributes of every entry."""
    assert subject.pid is not None, "the subject is mounted"
    machine.drop_kernel_caches()
    machine.settle(subject.pid)
    start = time.perf_counter()
    done = subprocess.run(
        ["find", str(subject.mountpoint), "-mindepth", "1", "-size", "-1000000", "-printf", "."],
        capture_output=True,
        check=True,
    )
    taken_s = time.perf_counter() - start
    assert len(done.stdout) == entries, f"find saw {len(done.stdout)} of {entries} entries"
    return taken_s
