"""The latency of a request while data is compressed, encrypted and uploaded.

The benchmark writes a file, and flushes the file to a bucket with added latency. During the flush,
and while the daemon is idle, it calls stat(2) on files whose dentries the kernel has dropped, so
that each call is a request. Compression, encryption, the server and the proxy use all processors,
so the same calls on the do-nothing filesystem show the latency of the busy machine.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from contrib.bench import far_store, machine, samples, targets
from contrib.bench.far_subjects import FarS3fsSubject
from contrib.bench.subjects import NullSubject, Subject, begin
from s3fs_meta.limits import MIB

FILES: Final = 2000
PAUSE_S: Final = 0.0005
IDLE_S: Final = 4.0
CEILING_RATIO_MAX: Final = 3.0
POOL_BYTES: Final = 32 * MIB
STAMP_BYTES: Final = 8
PASSPHRASE: Final = "correct horse battery staple"


def run(scratch: Path, *, read_mib: int, rounds: int, delay_ms: float) -> dict[str, object]:
    """Measure latencies during uploads and return the results."""
    size_bytes = read_mib * MIB
    os.environ["S3FS_META_PASSPHRASE"] = PASSPHRASE
    with far_store.running(scratch, delay_ms) as store:
        subject = FarS3fsSubject(scratch / "ours", store, {"sync_interval": "3600"})
        subject.make(())  # Without --plain, the filesystem is encrypted.
        with subject, NullSubject("do-nothing", scratch / "null") as null:
            for each in (subject, null):
                _make_files(each)
            turns = [_round(subject, null, number, size_bytes) for number in range(rounds)]
    ratio = statistics.median(turn["of do-nothing"] for turn in turns)
    what = "a stat during uploads, 99 %, of a stat on do-nothing"
    wanted = [targets.at_most(what, ratio, CEILING_RATIO_MAX)]
    return {"size_bytes": size_bytes, "delay_ms": delay_ms, "rounds": turns, "targets": wanted}


def _make_files(subject: Subject) -> None:
    for number in range(FILES):
        (subject.mountpoint / f"{number:06}").touch()


def _round(subject: FarS3fsSubject, null: Subject, number: int, size_bytes: int) -> dict[str, Any]:
    subject.wait_until_stored(0)
    subject.rest()
    end = time.monotonic() + IDLE_S
    idle = _probe([subject, null], lambda: time.monotonic() < end)
    write_file(subject.mountpoint / f"large-{number}", size_bytes)
    before, before_s = subject.endpoint.traffic(), subject.cpu_s()
    start = time.monotonic()
    flush = begin(*subject.words("flush"))
    busy = _probe([subject, null], lambda: flush.poll() is None)
    taken_s = time.monotonic() - start
    assert flush.returncode == 0, f"flush: status {flush.returncode}"
    figures = {
        f"{each.name}, {when}": samples.latencies(taken[each.name])
        for each in (subject, null)
        for when, taken in (("idle", idle), ("uploading", busy))
    }
    return {
        "of do-nothing": _p99(busy[subject.name]) / _p99(busy[null.name]),
        "of idle": _p99(busy[subject.name]) / _p99(idle[subject.name]),
        "do-nothing, of idle": _p99(busy[null.name]) / _p99(idle[null.name]),
        "MiB/s": size_bytes / MIB / taken_s,
        "processors used by the daemon": (subject.cpu_s() - before_s) / taken_s,
        "requests": subject.endpoint.traffic() - before,
        **figures,
    }


def _p99(taken: Sequence[float]) -> float:
    return samples.latencies(taken)["p99_ms"]


def _probe(subjects: Sequence[Subject], going_on: Callable[[], bool]) -> dict[str, list[float]]:
    """Call stat on uncached files until *going_on* returns false; return each call's seconds."""
    taken: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    number = FILES
    while going_on():
        if number == FILES:
            machine.drop_kernel_caches(pages=False)
            for subject in subjects:
                subject.mountpoint.stat()
            number = 0
        for subject in subjects:
            path = f"{subject.mountpoint}/{number:06}"
            start = time.perf_counter()
            os.stat(path)
            taken[subject.name].append(time.perf_counter() - start)
            time.sleep(PAUSE_S)
        number += 1
    return taken


def write_file(path: Path, size_bytes: int) -> None:
    """Write a file of blocks that differ from each other and compress to about half their size."""
    pool = bytearray(os.urandom(POOL_BYTES // 2).hex().encode())
    with path.open("wb", buffering=0) as file:
        for at in range(0, size_bytes, MIB):
            begin = at % POOL_BYTES
            pool[begin : begin + STAMP_BYTES] = at.to_bytes(STAMP_BYTES, "little")
            file.write(memoryview(pool)[begin : begin + MIB])
