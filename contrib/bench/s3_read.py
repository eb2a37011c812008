"""The speed of cold reads of one large file from a remote bucket.

*Plain* is the speed of boto3 without a filesystem. boto3 reads ranges of one object that is as
large as the file, with the settings, connections, threads and range size of s3fs-meta; the results
for other range sizes are separate. *Sequential* is the time from the first read to the last read,
without the mount. *Random* is the time of reads of 4 KiB at random offsets, one at a time. Each
measurement has a new mount without local state, and the filesystems alternate.
"""

import os
import random
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from contrib.bench import far_store, far_subjects, machine, samples, sequential, targets
from contrib.bench.far_store import FarEndpoint, FarStore
from contrib.bench.far_subjects import FarS3fsSubject, FarSubject
from contrib.bench.names import JUICEFS, OURS
from s3fs_meta.limits import KIB, MIB, READAHEAD_RUN_BYTES, STORE_THREADS_MAX
from s3fs_meta.objects.s3_access import S3ClientHolder, S3Place

RATIO_MIN: Final = 0.85
PIECES_MIB: Final = (1, 2, 4, 8, 16)
TRIED_BYTES: Final = 256 * MIB
RANDOM_BYTES: Final = 4 * KIB
FILE: Final = "big"
PLAIN_BUCKET: Final = "plain"


class Plain:
    """Reads of ranges of one object with boto3, without a filesystem."""

    def __init__(self, store: FarStore, size_bytes: int) -> None:
        self.endpoint: FarEndpoint = store.endpoint()
        self._size_bytes = size_bytes
        sequential.write_file(store.make_bucket(PLAIN_BUCKET) / FILE, size_bytes)
        self._holder = S3ClientHolder(S3Place(endpoint_url=self.endpoint.url))
        self._client = self._holder.client()
        tried_bytes = min(TRIED_BYTES, size_bytes)
        self.seconds_of_pieces = {
            piece_mib: self.read_s(piece_mib * MIB, tried_bytes) for piece_mib in PIECES_MIB
        }

    def read_s(self, piece_bytes: int, stop: int) -> float:
        """Read the first *stop* bytes in ranges of *piece_bytes*; return the seconds."""
        start = time.perf_counter()
        places = range(0, stop, piece_bytes)
        with ThreadPoolExecutor(STORE_THREADS_MAX) as pool:
            total = sum(pool.map(lambda at: self._piece(at, min(at + piece_bytes, stop)), places))
        assert total == stop, f"read {total} of {stop} bytes"
        return time.perf_counter() - start

    def round_s(self) -> float:
        """Read the object in ranges of s3fs-meta's size; return the seconds."""
        return self.read_s(READAHEAD_RUN_BYTES, self._size_bytes)

    def _piece(self, begin: int, end: int) -> int:
        span = f"bytes={begin}-{end - 1}"
        answer = self._client.get_object(Bucket=PLAIN_BUCKET, Key=FILE, Range=span)
        return len(answer["Body"].read())

    def close(self) -> None:
        """Close the connections of the client."""
        self._holder.close()


def run(
    scratch: Path, *, read_mib: int, reads: int, rounds: int, delay_ms: float
) -> dict[str, object]:
    """Measure boto3 and all installed filesystems; return the results."""
    size_bytes = read_mib * MIB
    with far_store.running(scratch, delay_ms) as store:
        others, absent = far_subjects.peers(scratch, store, unpacks=False)
        subjects = [FarS3fsSubject(scratch / "ours", store), *others]
        plain = Plain(store, size_bytes)
        try:
            for subject in subjects:
                _fill(subject, size_bytes)
            figures = _measure(plain, subjects, size_bytes, reads, rounds)
        finally:
            plain.close()
    return {
        "size_bytes": size_bytes,
        "delay_ms": delay_ms,
        "connections": STORE_THREADS_MAX,
        "plain_piece_mib": READAHEAD_RUN_BYTES // MIB,
        "plain_seconds_by_piece_mib": plain.seconds_of_pieces,
        "absent": absent,
        **figures,
        "targets": _targets(figures),
    }


def _targets(figures: dict[str, dict[str, dict[str, float]]]) -> list[targets.Target]:
    """Return targets relative to plain requests and to the other filesystems."""
    sequential_s, random_ms = (
        {name: row[unit] for name, row in figures[kind].items() if name not in (OURS, "plain")}
        for kind, unit in (("sequential", "seconds"), ("random", "median_ms"))
    )
    ours = figures["sequential"][OURS]
    what = "sequential cold read, of plain range requests"
    wanted = [targets.at_least(what, ours["ratio"], RATIO_MIN)]
    for name, seconds in sequential_s.items():
        what = f"sequential cold read: speed against {name}"
        wanted.append(targets.at_least(what, seconds / ours["seconds"], 1.0, "times"))
    if JUICEFS in random_ms:
        what = f"random cold read: speed against {JUICEFS}"
        ahead = random_ms[JUICEFS] / figures["random"][OURS]["median_ms"]
        wanted.append(targets.at_least(what, ahead, 1.0, "times"))
    return wanted


def _fill(subject: FarSubject, size_bytes: int) -> None:
    subject.make()
    with subject:
        sequential.write_file(subject.mountpoint / FILE, size_bytes)
        subject.wait_until_stored(1)


def _measure(
    plain: Plain, subjects: Sequence[FarSubject], size_bytes: int, reads: int, rounds: int
) -> dict[str, dict[str, dict[str, float]]]:
    plain_s: list[float] = []
    taken: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    requests: dict[str, float] = {}
    for _ in range(rounds):
        machine.drop_kernel_caches()
        plain_s.append(plain.round_s())
        for subject in subjects:
            seconds, requests[subject.name] = _sequential(subject, size_bytes)
            taken[subject.name].append(seconds)
    table = {"plain": {"seconds": statistics.median(plain_s)}} | {
        name: {
            "ratio": samples.ratio(plain_s, values),
            "seconds": statistics.median(values),
            "GET": requests[name],
        }
        for name, values in taken.items()
    }
    return {
        "sequential": table,
        "random": {subject.name: _random(subject, size_bytes, reads) for subject in subjects},
    }


def _cold(subject: FarSubject) -> FarSubject:
    subject.forget()
    machine.drop_kernel_caches()
    return subject


def _sequential(subject: FarSubject, size_bytes: int) -> tuple[float, int]:
    """Read the file without local state; return the seconds and the number of GETs."""
    with _cold(subject):
        before, start = subject.endpoint.traffic(), time.perf_counter()
        sequential.read_file(subject.mountpoint / FILE, size_bytes)
        seconds = time.perf_counter() - start
        after = subject.endpoint.traffic()
    return seconds, after["GET"] - before["GET"]


def _random(subject: FarSubject, size_bytes: int, reads: int) -> dict[str, float]:
    """Read at random offsets without local state; return milliseconds, GETs and KiB per read."""
    places = random.Random(1)
    taken: list[float] = []
    with _cold(subject):
        before = subject.endpoint.traffic()
        fd = os.open(subject.mountpoint / FILE, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            for _ in range(reads):
                at = places.randrange(size_bytes // RANDOM_BYTES) * RANDOM_BYTES
                start = time.perf_counter()
                assert len(os.pread(fd, RANDOM_BYTES, at)) == RANDOM_BYTES, "the file is too short"
                taken.append(time.perf_counter() - start)
        finally:
            os.close(fd)
        after = subject.endpoint.traffic()
    gets = after["GET"] - before["GET"]
    return {
        "median_ms": statistics.median(taken) * 1e3,
        "max_ms": max(taken) * 1e3,
        "GET_per_read": gets / reads,
        "KiB_per_read": (after["received_bytes"] - before["received_bytes"]) / reads / KIB,
    }
