"""The speed of sequential writes, and of reads of cached data.

s3fs-meta and the do-nothing filesystem are compared. Every MiB of the file is different and
incompressible, so that nothing is deduplicated. Before the read, the kernel drops its pages of the
file. It keeps its pages of the files in the local cache, because the benchmark does not measure the
disk. A write ends with close, which sends all dirty pages to the daemon. fsync waits for the disk,
so it is timed separately. s3fs-meta uploads the data before the read.
"""

import os
import time
from pathlib import Path
from typing import Final

from contrib.bench import samples, targets
from contrib.bench.subjects import NullSubject, S3fsSubject, Subject

RATIO_MIN: Final = 0.9
PIECE_BYTES: Final = 1 << 20
POOL_BYTES: Final = 32 << 20
STAMP_BYTES: Final = 8
PHASES: Final = ("write", "fsync", "read")


def run(scratch: Path, *, gib: int, rounds: int) -> dict[str, object]:
    """Measure both filesystems alternately and return the results."""
    size_bytes = gib << 30
    subject = S3fsSubject("s3fs-meta", scratch / "subject")
    subject.make()
    with NullSubject("do-nothing", scratch / "null", plain_files=True) as null, subject:
        seconds: dict[tuple[str, str], list[float]] = {
            (each.name, phase): [] for each in (null, subject) for phase in PHASES
        }
        for number in range(rounds):
            for each in samples.rotated((null, subject), number):
                path = each.mountpoint / f"big{number}"
                for phase, taken_s in zip(PHASES, _round(each, path, size_bytes), strict=True):
                    seconds[each.name, phase].append(taken_s)
        return _report(null, subject, seconds, size_bytes)


def _round(subject: Subject, path: Path, size_bytes: int) -> tuple[float, float, float]:
    """Write, sync, read and remove a file; return the seconds of write, fsync and read."""
    subject.settle()
    start = time.perf_counter()
    write_file(path, size_bytes)
    wrote = time.perf_counter()
    forget_pages(path)
    synced = time.perf_counter()
    subject.settle()
    before_read = time.perf_counter()
    read_file(path, size_bytes)
    after_read = time.perf_counter()
    path.unlink()
    return wrote - start, synced - wrote, after_read - before_read


def write_file(path: Path, size_bytes: int) -> None:
    """Write incompressible data in which every MiB differs."""
    pool = bytearray(os.urandom(POOL_BYTES))
    view = memoryview(pool)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for number in range(size_bytes // PIECE_BYTES):
            at = number * PIECE_BYTES % POOL_BYTES
            pool[at : at + STAMP_BYTES] = number.to_bytes(STAMP_BYTES, "little")
            os.write(descriptor, view[at : at + PIECE_BYTES])
    finally:
        os.close(descriptor)


def read_file(path: Path, size_bytes: int) -> None:
    """Read the file to its end; check that each MiB begins with its number."""
    buffer = bytearray(PIECE_BYTES)
    total = 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            stamp = int.from_bytes(buffer[:STAMP_BYTES], "little")
            assert count < PIECE_BYTES or stamp == total // PIECE_BYTES, "wrong content"
            total += count
    assert total == size_bytes, f"read {total} of {size_bytes} bytes"


def forget_pages(path: Path) -> None:
    """Sync the file and drop its pages from the kernel, but not the pages of the local cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _report(
    null: Subject, subject: Subject, seconds: dict[tuple[str, str], list[float]], size_bytes: int
) -> dict[str, object]:
    phases: dict[str, object] = {}
    ratios = {}
    for phase in PHASES:
        ratios[phase] = samples.ratio(seconds[null.name, phase], seconds[subject.name, phase])
        phases[phase] = {
            "ratio": ratios[phase],
            **{
                each.name: {"seconds": samples.summary(seconds[each.name, phase])}
                for each in (null, subject)
            },
        }
    return {
        "size_bytes": size_bytes,
        "phases": phases,
        "targets": [
            targets.at_least(
                f"{phase}: speed against do-nothing", ratios[phase], RATIO_MIN, "times"
            )
            for phase in ("write", "read")
        ],
    }
