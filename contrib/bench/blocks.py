"""Throughput, cost of small changes and size of the metadata, for each block size.

For each block size the benchmark makes a filesystem, writes a file, uploads the file and reads it
from the local cache. Then it changes 4 KiB at random offsets and uploads the changes. Finally it
reads 4 KiB at random offsets on a mount without local state.
"""

import os
import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from contrib.bench import machine, sequential
from contrib.bench.subjects import S3fsSubject, call

SIZES: Final = ("128K", "256K", "512K", "1M", "2M", "4M", "8M")
KIB: Final = 1024
MIB: Final = 1024 * KIB
TIB: Final = 1 << 40
SMALL_BYTES: Final = 4 * KIB
CHANGES: Final = 500
COLD_READS: Final = 200
SEED: Final = 1


def run(scratch: Path, *, block_mib: int) -> dict[str, object]:
    """Measure each block size with a file of *block_mib* MiB."""
    size_bytes = block_mib * MIB
    figures = {
        block: measure(S3fsSubject("s3fs-meta", scratch / block), block, size_bytes)
        for block in SIZES
    }
    # The filesystem with the smallest blocks has the most rows, so its size per row is most exact.
    row_bytes = figures[SIZES[0]]["metadata_bytes_per_block"]
    for block, each in figures.items():
        each.pop("metadata_bytes_per_block")
        each["metadata_mib_per_tib"] = row_bytes * TIB / _bytes_of(block) / MIB
    return {
        "size_bytes": size_bytes,
        "changes": CHANGES,
        "cold_reads": COLD_READS,
        "metadata_bytes_per_block": row_bytes,
        "block_sizes": figures,
    }


def measure(subject: S3fsSubject, block: str, size_bytes: int) -> dict[str, float]:
    """Measure a filesystem with the block size *block*, for example "128K"; return the results."""
    subject.make(["--plain", "--block-size", block])
    with subject:
        pass  # The first mount creates the database.
    rows_before = _database_bytes(subject)
    path = subject.mountpoint / "file"
    with subject:
        figures = _large(subject, path, size_bytes)
    blocks = size_bytes // _bytes_of(block)
    figures["metadata_bytes_per_block"] = (_database_bytes(subject) - rows_before) / blocks
    with subject:
        figures |= _small_changes(subject, path, size_bytes)
    shutil.rmtree(subject.state)
    subject.state.mkdir()
    with subject:
        figures["cold_read_ms"] = _small_reads_s(path, size_bytes) / COLD_READS * 1e3
    shutil.rmtree(subject.root)
    return figures


def _large(subject: S3fsSubject, path: Path, size_bytes: int) -> dict[str, float]:
    """Write, upload and read a large file; return the speed of each step in MiB per second."""
    start = time.perf_counter()
    sequential.write_file(path, size_bytes)
    written = time.perf_counter()
    call(*subject.words("flush"))
    shipped = time.perf_counter()
    sequential.forget_pages(path)
    before_read = time.perf_counter()
    sequential.read_file(path, size_bytes)
    after_read = time.perf_counter()
    size_mib = size_bytes / MIB
    return {
        "write_mib_s": size_mib / (written - start),
        "ship_mib_s": size_mib / (shipped - start),
        "read_mib_s": size_mib / (after_read - before_read),
    }


def _small_changes(subject: S3fsSubject, path: Path, size_bytes: int) -> dict[str, float]:
    """Change 4 KiB at many offsets; return milliseconds and uploaded KiB per change."""
    before = _bucket_bytes(subject)
    data = os.urandom(SMALL_BYTES)
    descriptor = os.open(path, os.O_RDWR)
    start = time.perf_counter()
    for offset in _offsets(size_bytes, CHANGES):
        os.pwrite(descriptor, data, offset)
    os.fsync(descriptor)
    taken_s = time.perf_counter() - start
    os.close(descriptor)
    call(*subject.words("flush"))
    stored = _bucket_bytes(subject) - before
    return {"change_ms": taken_s / CHANGES * 1e3, "stored_kib_per_change": stored / CHANGES / KIB}


def _small_reads_s(path: Path, size_bytes: int) -> float:
    """Return the total seconds of random 4 KiB reads on a mount without local state."""
    machine.drop_kernel_caches()
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    start = time.perf_counter()
    for offset in _offsets(size_bytes, COLD_READS):
        assert len(os.pread(descriptor, SMALL_BYTES, offset)) == SMALL_BYTES, (
            "the file is too short"
        )
    taken_s = time.perf_counter() - start
    os.close(descriptor)
    return taken_s


def _offsets(size_bytes: int, count: int) -> Sequence[int]:
    """Return *count* random offsets, the same in every run."""
    places = random.Random(SEED).sample(range(size_bytes // SMALL_BYTES), count)
    return [place * SMALL_BYTES for place in places]


def _bytes_of(block: str) -> int:
    return int(block[:-1]) * (KIB if block.endswith("K") else MIB)


def _database_bytes(subject: S3fsSubject) -> int:
    return subject.database().stat().st_size


def _bucket_bytes(subject: S3fsSubject) -> int:
    """Return the size of all packs in the bucket."""
    packs = subject.bucket.rglob("*")
    return sum(path.stat().st_size for path in packs if "pack" in path.parts and path.is_file())
