"""The time per file of common operations on filesystems of several sizes.

For each size, the benchmark inserts rows of empty files into the database, 1,000 files per
directory. Names have 16 bytes. It mounts the filesystem and measures: *image*, *restore* (a mount
without local state, until a directory is listed), *create* (20,000 files), *find cold* (with
dropped kernel caches), *find warm*, *clone* of all files, *rm* of the clone until no inode of it is
left, and *fsck*. The time of *create* is divided by the number of created files, and any other time
by the number of all files. The time of a command without effect is subtracted from the time of each
command, and the time of a mount with local state from the time of a restore. The growth targets
compare CPU times of the daemon or of fsck. SQLite has its default page cache, so a large database
is read through the page cache of the kernel.
"""

import contextlib
import math
import shutil
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from contrib.bench import fill, machine, measured_command, samples, targets
from contrib.bench.subjects import S3fsSubject, call, call_s, program

PER_DIRECTORY: Final = 1000
NAME_BYTES: Final = 16
FILES_MIN: Final = 10_000
CREATED: Final = 20_000
IDLE_COMMANDS: Final = 3
BYTES_PER_FILE_MAX: Final = 110
MEMORY_GROWTH_MAX: Final = 0.1
ANSWER_S_MAX: Final = 1.0  # Maximum time of a mount with local state, until the first reply.
RESTORED_S_MAX: Final = 60.0  # Maximum time of a mount without local state.
COUNTS_MAX: Final = 20
COUNT: Final = "SELECT count(*) FROM dentries JOIN inodes ON inodes.ino = dentries.ino"
GROWTH_SLACK: Final = 1.25  # Tolerated ratio between the results of two runs of equal size.
STEPS: Final = (
    "image",
    "restore",
    "create",
    "find cold",
    "find warm",
    "clone",
    "rm",
    "fsck",
)

Row = dict[str, float]


class FirstAnswer(NamedTuple):
    """The start of a mount with dropped kernel caches."""

    wall_s: float  # From the start of the mount until PER_DIRECTORY files were listed.
    cpu_s: float  # CPU time of the daemon until these files were listed.
    root_s: float  # Time of a later listing of the root directory.
    memory_mb: float


def sizes_up_to(largest: int) -> list[int]:
    """Return a hundredth, a tenth and all of *largest*, except sizes below FILES_MIN."""
    return [size for size in (largest // 100, largest // 10, largest) if size >= FILES_MIN]


def run(scratch: Path, *, scale_power: int, sizes: Sequence[int] | None) -> dict[str, Any]:
    """Measure a filesystem of each size; print each result row as soon as it is complete."""
    rows: dict[str, Row] = {}
    for size in sizes or sizes_up_to(10**scale_power):
        place = scratch / str(size)
        rows[str(size)] = _measure(place, size)
        print(f"scale {size}: {rows[str(size)]}", flush=True)
        shutil.rmtree(place)
    return {"per_file": rows, "growth": _growth(rows), "targets": _targets(rows)}


def _measure(place: Path, files: int) -> Row:
    subject = S3fsSubject("scale", place)
    filled_s = samples.seconds(
        lambda: fill.make_filled(
            subject, files=files, per_directory=PER_DIRECTORY, name_bytes=NAME_BYTES
        )
    )
    row: Row = {
        "files": files,
        "fill": filled_s * 1e6 / files,
        "bytes per file": fill.bytes_per_file(subject, files),
    }
    with subject:
        subject.rest()
        row["daemon MB mounted"] = _memory_mb(subject, "resident")
        _image(subject, files, row)
        _restore(subject, row)
        _through_the_mount(subject, files, row)
        row["daemon MB"] = _memory_mb(subject, "resident_peak")
        machine.drop_kernel_caches()
    _fsck(subject, row)
    return row


def _fsck(subject: S3fsSubject, row: Row) -> None:
    """Run fsck, which must report no damage; record its time, also relative to a count of rows."""
    command = [*program(), "fsck", "-n", subject.url, "--cachedir", str(subject.state)]
    found = measured_command.run(*command)
    row["fsck"] = (found.seconds - row["idle s"]) * 1e6 / row["files"]
    row["fsck cpu"] = found.cpu_s * 1e6 / row["files"]
    row["fsck MB"] = found.peak_mb
    row["fsck, of a count"] = found.seconds / _count_s(subject.database())


def _count_s(database: Path) -> float:
    """Return the seconds of a query that counts inodes joined with dentries in cached pages."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        connection.execute(COUNT).fetchone()
        return samples.seconds(lambda: connection.execute(COUNT).fetchone())


def _restore(subject: S3fsSubject, row: Row) -> None:
    """Mount read-only without local state, and again with local state; record the difference."""
    place = subject.root / "reader"
    reader = S3fsSubject("reader", place, options={"ro": ""}, beside=subject)
    first, again = _first_answer(reader), _first_answer(reader)
    row["restored MB"] = first.memory_mb
    row["first answer without state s"], row["first answer s"] = first.wall_s, again.wall_s
    row["ls of the root s"] = again.root_s
    row["restore"] = (first.wall_s - again.wall_s) * 1e6 / row["files"]
    row["restore cpu"] = (first.cpu_s - again.cpu_s) * 1e6 / row["files"]
    shutil.rmtree(reader.root)


def _image(subject: S3fsSubject, files: int, row: Row) -> None:
    """Make the first image that contains the files, for which all pieces must be uploaded."""
    row["idle s"] = _idle_s(subject)
    (subject.mountpoint / "first").touch()
    _command_step(subject, row, "image", subject.words("flush", "--image"))
    objects = (path for path in (subject.bucket / "image").rglob("*") if path.is_file())
    row["image bytes per file"] = sum(path.stat().st_size for path in objects) / files


def _through_the_mount(subject: S3fsSubject, files: int, row: Row) -> None:
    root = subject.mountpoint
    _step(subject, row, "create", lambda: _create(root / "new"), CREATED)
    machine.drop_kernel_caches()
    _step(subject, row, "find cold", lambda: _find(root), files)
    _step(subject, row, "find warm", lambda: _find(root), files)
    subject.rest()
    row["daemon MB after find"] = _memory_mb(subject, "resident")
    _gather(root)
    machine.drop_kernel_caches(pages=False)
    subject.rest()
    row["daemon MB after forgetting"] = _memory_mb(subject, "resident")
    clone = subject.words("clone", paths=[root / "tree", root / "copy"])
    _command_step(subject, row, "clone", clone)
    row["daemon MB after clone"] = _memory_mb(subject, "resident")
    _command_step(subject, row, "rm", subject.words("rm", "--wait", paths=[root / "copy"]))
    row["daemon MB after rm"] = _memory_mb(subject, "resident")


def _create(directory: Path) -> None:
    for start in range(0, CREATED, PER_DIRECTORY):
        below = directory / f"{start:08}"
        below.mkdir(parents=True)
        for number in range(PER_DIRECTORY):
            (below / f"{number:016}").touch()


def _find(root: Path) -> None:
    """List all files and read their attributes."""
    subprocess.run(["find", root, "-size", "+1000000"], check=True, stdout=subprocess.DEVNULL)


def _gather(root: Path) -> None:
    """Move the inserted files into the directory ``tree``, so that one clone copies them all."""
    (root / "tree").mkdir()
    for path in root.iterdir():
        if path.name.startswith("directory-"):
            path.rename(root / "tree" / path.name)


def _first_answer(reader: S3fsSubject) -> FirstAnswer:
    """Mount with dropped kernel caches, and list a directory of PER_DIRECTORY files, then the root.

    The root is listed separately, because its number of directories grows with the number of files.
    """
    machine.drop_kernel_caches()
    began_s = time.perf_counter()
    with reader:
        _ls(reader.mountpoint / fill.directory_name(0).decode())
        answered_s = time.perf_counter() - began_s
        cpu_s = reader.cpu_s()
        root_s = samples.seconds(lambda: _ls(reader.mountpoint))
        return FirstAnswer(answered_s, cpu_s, root_s, _memory_mb(reader, "resident_peak"))


def _ls(directory: Path) -> None:
    subprocess.run(["ls", directory], check=True, stdout=subprocess.DEVNULL)


def _idle_s(subject: S3fsSubject) -> float:
    """Return the run time of a command that has no effect, in seconds."""
    return statistics.median(call_s(*subject.words("status")) for _ in range(IDLE_COMMANDS))


def _step(
    subject: S3fsSubject, row: Row, name: str, work: Callable[[], object], count: float
) -> None:
    """Record the wall time and CPU time of a step, in microseconds per file."""
    subject.rest()
    before_s = subject.cpu_s()
    row[name] = samples.seconds(work) * 1e6 / count
    row[f"{name} cpu"] = (subject.cpu_s() - before_s) * 1e6 / count


def _command_step(subject: S3fsSubject, row: Row, name: str, words: Sequence[str]) -> None:
    """Record the time of a command, minus the time of a command without effect."""
    _step(subject, row, name, lambda: call(*words), row["files"])
    row[name] -= _idle_s(subject) * 1e6 / row["files"]


def _memory_mb(subject: S3fsSubject, which: str) -> float:
    return subject.memory()[which] / 1e6


def _growth(rows: dict[str, Row]) -> dict[str, float]:
    """Return the growth of each step's CPU time per file, from the smallest to the largest size.

    Each time is the difference of two measurements, so it may be negative; such sizes are omitted.
    """
    growth = {}
    for step in STEPS:
        found = [row[f"{step} cpu"] for row in rows.values() if row[f"{step} cpu"] > 0]
        assert found, f"{step} took no time at any size"
        growth[step] = found[-1] / found[0]
    return growth


def _targets(rows: dict[str, Row]) -> list[targets.Target]:
    sizes = [row["files"] for row in rows.values()]
    wanted = math.log(sizes[-1]) / math.log(sizes[0]) * GROWTH_SLACK
    grown = [
        targets.at_most(f"growth of {step} per file", growth, wanted, "times")
        for step, growth in _growth(rows).items()
    ]
    memory = [row["daemon MB after find"] for row in rows.values()][-2:]
    growth = memory[-1] / memory[0] - 1
    what = "growth of the daemon over ten times the files"
    grown.append(targets.at_most(what, growth, MEMORY_GROWTH_MAX))
    # Judge only the largest size: in smaller runs, start-up takes most of the time.
    last = list(rows.values())[-1]
    for name, key, most, unit in (
        ("fsck in units of one count", "fsck, of a count", COUNTS_MAX, "times"),
        ("mount and ls with local state", "first answer s", ANSWER_S_MAX, "s"),
        ("mount and ls without local state", "first answer without state s", RESTORED_S_MAX, "s"),
    ):
        grown.append(targets.at_most(name, last[key], most, unit))
    largest = max(row["bytes per file"] for row in rows.values())
    return [*grown, targets.at_most("metadata of a file", largest, BYTES_PER_FILE_MAX, "bytes")]
