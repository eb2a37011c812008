"""Time per file at several sizes of filesystem: what grows, and how.

Empty files with names of 16 bytes, 1,000 in a directory, written as rows; then through the mount
and the commands: a sample of new files, find with nothing in memory and again, a copy of all of it
and its removal until nothing is left, an image, fsck, and a restore where nothing is known.
All but *create* is divided by the files that are there; *create* by the sample. What a command
takes that does nothing is taken off, and of a restore what a mount takes that needs none. The page
cache of SQLite is the default, so the larger sizes are read from the kernel's.
"""

import math
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from contrib.bench import fill, fsck, machine, space, targets
from contrib.bench.subjects import S3fsSubject
from contrib.bench.subjects import run as run_program

PER_DIRECTORY: Final = 1000
NAME_BYTES: Final = 16
FILES_MIN: Final = 10_000
CREATED: Final = 20_000
IDLE_COMMANDS: Final = 3
BYTES_PER_FILE_MAX: Final = 110
GROWTH_SLACK: Final = 1.25  # what two runs of the same differ by
STEPS: Final = (
    "create",
    "find cold",
    "find warm",
    "clone",
    "rm",
    "image",
    "fsck",
    "restore",
)

Row = dict[str, float]


def sizes_up_to(largest: int) -> list[int]:
    """Return *largest* and up to two tenths of it, ascending."""
    return [size for size in (largest // 100, largest // 10, largest) if size >= FILES_MIN]


def run(scratch: Path, *, sizes: Sequence[int]) -> dict[str, Any]:
    """Measure each size on a filesystem of its own; print each row as it is there."""
    rows: dict[str, Row] = {}
    for size in sizes:
        place = scratch / str(size)
        rows[str(size)] = _measure(place, size)
        print(f"scale {size}: {rows[str(size)]}", flush=True)
        shutil.rmtree(place)
    return {"microseconds_per_file": rows, "growth": _growth(rows), "targets": _targets(rows)}


def _measure(place: Path, files: int) -> Row:
    subject = S3fsSubject("scale", place)
    filled_s = _seconds(
        lambda: fill.make_filled(
            subject, files=files, per_directory=PER_DIRECTORY, name_bytes=NAME_BYTES
        )
    )
    row: Row = {
        "files": files,
        "fill": filled_s * 1e6 / files,
        "bytes per file": space.bytes_per_file(subject.database(), files),
    }
    with subject:
        _through_the_mount(subject, files, row)
        row["image"] = _command_us(subject, files, "flush", "--image", subject.mountpoint)
        row["daemon MB"] = _memory_mb(subject, "resident_peak")
        machine.drop_kernel_caches()
    taken_s, peak_bytes = fsck.check(subject)
    row["fsck"], row["fsck MB"] = (taken_s - row["idle s"]) * 1e6 / files, peak_bytes / 1e6
    row["bucket bytes per file"] = _bucket_bytes(subject, "image") / files
    reader = S3fsSubject("reader", place / "reader", options={"ro": ""})
    reader.bucket = subject.bucket
    reader.state.mkdir()
    taken_s, row["restored MB"] = _first_answer(reader)
    row["restore"] = (taken_s - _first_answer(reader)[0]) * 1e6 / files
    return row


def _through_the_mount(subject: S3fsSubject, files: int, row: Row) -> None:
    root = subject.mountpoint
    row["create"] = _seconds(lambda: _create(root / "new")) * 1e6 / CREATED
    machine.drop_kernel_caches()
    row["find cold"] = _seconds(lambda: _find(root)) * 1e6 / files
    row["find warm"] = _seconds(lambda: _find(root)) * 1e6 / files
    row["daemon MB after find"] = _memory_mb(subject, "resident")
    _gather(root)
    machine.drop_kernel_caches(pages=False)
    row["idle s"] = _idle_s(subject)
    row["clone"] = _command_us(subject, files, "clone", root / "tree", root / "copy")
    row["daemon MB after clone"] = _memory_mb(subject, "resident")
    row["rm"] = _command_us(subject, files, "rm", "--wait", root / "copy")
    row["daemon MB after rm"] = _memory_mb(subject, "resident")


def _create(directory: Path) -> None:
    for start in range(0, CREATED, PER_DIRECTORY):
        below = directory / f"{start:08}"
        below.mkdir(parents=True)
        for number in range(PER_DIRECTORY):
            (below / f"{number:016}").touch()


def _find(root: Path) -> None:
    """Go through everything with its attributes."""
    subprocess.run(["find", root, "-size", "+1000000"], check=True, stdout=subprocess.DEVNULL)


def _gather(root: Path) -> None:
    """Bring what was filled in below one directory, so that it can be copied."""
    (root / "tree").mkdir()
    for path in root.iterdir():
        if path.name.startswith("directory-"):
            path.rename(root / "tree" / path.name)


def _first_answer(reader: S3fsSubject) -> tuple[float, float]:
    """Mount, the first time with a restore; return seconds to an answer, and memory."""
    machine.drop_kernel_caches()
    began_s = time.perf_counter()
    with reader:
        subprocess.run(["ls", reader.mountpoint], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began_s, _memory_mb(reader, "resident_peak")


def _idle_s(subject: S3fsSubject) -> float:
    """Return how long a command takes that does nothing."""
    return statistics.median(
        _seconds(lambda: _command(subject, "status", subject.mountpoint))
        for _ in range(IDLE_COMMANDS)
    )


def _command_us(subject: S3fsSubject, files: int, *words: str | Path) -> float:
    """Return the microseconds per file of a command, beyond those of one that does nothing."""
    taken_s = _seconds(lambda: _command(subject, *words)) - _idle_s(subject)
    return taken_s * 1e6 / files


def _command(subject: S3fsSubject, *words: str | Path) -> None:
    run_program([*map(str, words), "--cachedir", str(subject.state)])


def _seconds(work: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def _memory_mb(subject: S3fsSubject, which: str) -> float:
    assert subject.pid is not None, "it is mounted"
    return machine.memory_bytes(subject.pid)[which] / 1e6


def _bucket_bytes(subject: S3fsSubject, kind: str) -> int:
    """Return the size of the newest image: of all pieces that were put by the last run."""
    pieces = [path for path in (subject.bucket / kind).rglob("*") if path.is_file()]
    newest = max(pieces, key=lambda path: path.stat().st_mtime)
    return sum(path.stat().st_size for path in newest.parent.iterdir())


def _growth(rows: dict[str, Row]) -> dict[str, float]:
    """Return by how much the time per file of each step grew from the smallest to the largest."""
    first, *_, last = (*rows.values(), list(rows.values())[-1])
    return {step: last[step] / first[step] for step in STEPS}


def _targets(rows: dict[str, Row]) -> list[targets.Target]:
    sizes = [row["files"] for row in rows.values()]
    wanted = math.log(sizes[-1]) / math.log(sizes[0]) * GROWTH_SLACK
    grown = [
        targets.at_most(f"growth of {step} per file", growth, wanted, "times")
        for step, growth in _growth(rows).items()
    ]
    largest = max(row["bytes per file"] for row in rows.values())
    return [*grown, targets.at_most("metadata of a file", largest, BYTES_PER_FILE_MAX, "bytes")]
