"""The effect of the compiled extension: the same operations on two mounts, with it and without.

Both take turns at each operation; medians are compared, and the ratio is that of the turns.
The last two are on read-only mounts of the same filesystems. Copies are of content that is in the
bucket.
"""

import functools
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from contrib.bench import find_cold, machine, samples, targets
from contrib.bench.subjects import S3fsSubject

WITH: Final = "used"
WITHOUT: Final = "off"
MIB: Final = 1 << 20
PIECE: Final = 4096
CHUNK: Final = 128 * 1024
STREAM_MIB: Final = 256
COPY_S_MAX: Final = 0.2  # for 10 GiB

Work = Callable[[Path, int], int]  # a directory, the number of the turn → how many operations


def run(scratch: Path, *, files: int, entries: int, copy_mib: int, rounds: int) -> dict[str, Any]:
    """Measure everything and return the figures."""
    subjects = [S3fsSubject(name, scratch / name, options={"extension": name}) for name in
                (WITH, WITHOUT)]  # fmt: skip
    for subject in subjects:
        subject.make()
    work: dict[str, Work] = {
        "find again": lambda root, _: _find(root / "tree", entries),
        "create and close": lambda root, turn: _create(root / f"new-{turn}", files),
        "write 4 KiB at a time": lambda root, _: _write(root / "stream", PIECE, STREAM_MIB // 8),
        "write 128 KiB at a time": lambda root, _: _write(root / "stream", CHUNK, STREAM_MIB),
        "open, read, close": lambda root, _: _read(root / "read", files),
    }
    figures: dict[str, dict[str, Any]] = {}
    with subjects[0], subjects[1]:
        for subject in subjects:
            _prepare(subject, files, entries, copy_mib)
        for name, each in work.items():
            figures[name] = _turns(subjects, each, rounds)
        figures[f"cp of {copy_mib:,} MiB"] = _turns(subjects, _copy, 1)
    for subject in subjects:
        subject.options["ro"] = ""
    with subjects[0], subjects[1]:
        read = functools.partial(_read_in, files=files)
        figures["open, read, close; read-only"] = _turns(subjects, read, rounds)
    copied_s = figures[f"cp of {copy_mib:,} MiB"][WITH]["seconds"]["median"]
    return {
        "operations": figures,
        "targets": [
            targets.at_most(
                "cp within the mount, each 10 GiB", copied_s * 10 * 1024 / copy_mib, COPY_S_MAX, "s"
            )
        ],
    }


def _prepare(subject: S3fsSubject, files: int, entries: int, copy_mib: int) -> None:
    root = subject.mountpoint
    (root / "tree").mkdir()
    find_cold.make_tree(root / "tree", entries)
    (root / "read").mkdir()
    for number in range(files):
        (root / "read" / str(number)).write_bytes(b"%d" % number * 100)
    with open(root / "large", "wb") as file:
        for number in range(copy_mib):  # no hole: cp(1) reads and writes a file that has one
            file.write((number + 1).to_bytes(8, "little") * (MIB // 8))
    subject.settle()


def _turns(subjects: list[S3fsSubject], work: Work, rounds: int) -> dict[str, Any]:
    """Let both do it in turns; the first turn of each is not counted, unless it is the only one."""
    wall_s: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    cpu_s: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for turn in range(rounds + 1 if rounds > 1 else 1):
        for subject in subjects if turn % 2 == 0 else reversed(subjects):
            assert subject.pid is not None, "the subject is mounted"
            before_s = machine.cpu_s(subject.pid)
            start_s = time.perf_counter()
            count = work(subject.mountpoint, turn)
            wall_s[subject.name].append((time.perf_counter() - start_s) / count)
            cpu_s[subject.name].append((machine.cpu_s(subject.pid) - before_s) / count)
    first = min(1, rounds - 1)
    figures: dict[str, Any] = {
        name: {
            "seconds": samples.summary(wall_s[name][first:]),
            "daemon_cpu_seconds": samples.summary(cpu_s[name][first:]),
        }
        for name in wall_s
    }
    pairs = zip(wall_s[WITHOUT][first:], wall_s[WITH][first:], strict=True)
    figures["times as fast"] = statistics.median(without / used for without, used in pairs)
    return figures


# --- what is done ------------------------------------------------------------------------------


def _find(root: Path, entries: int) -> int:
    done = subprocess.run(["find", root, "-printf", "."], capture_output=True, check=True)
    assert len(done.stdout) == entries + 1, f"find saw {len(done.stdout)} entries"
    return 1


def _create(root: Path, files: int) -> int:
    root.mkdir()
    for number in range(files):
        os.close(os.open(f"{root}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    return files


def _write(path: Path, piece_bytes: int, size_mib: int) -> int:
    """Write a file anew, piece by piece; return how many MiB."""
    piece = bytes(range(256)) * (piece_bytes // 256)
    with open(path, "wb", buffering=0) as file:
        file.writelines(piece for _ in range(size_mib * MIB // piece_bytes))
    return size_mib


def _read(root: Path, files: int) -> int:
    for number in range(files):
        fd = os.open(f"{root}/{number}", os.O_RDONLY)
        os.read(fd, PIECE)
        os.close(fd)
    return files


def _read_in(root: Path, _turn: int, *, files: int) -> int:
    return _read(root / "read", files)


def _copy(root: Path, _turn: int) -> int:
    subprocess.run(["cp", root / "large", root / "copy"], check=True)
    return 1
