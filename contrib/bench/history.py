"""The time of queries about the past: ``versions``, ``diff`` and files in ``.snapshots``.

The filesystem has *many* empty files and *txgs* later changelogs. Each changelog creates a few
files, and every hundredth changelog also changes one watched file. The bucket is a directory. For
the results *far*, the same commands read this directory through versitygw, with a delay of
*delay_ms* per request. Each time includes the start of a process, which takes a few tenths of a
second. The copy of the past is a clone of the root directory at an earlier point in time.
"""

import contextlib
import json
import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import trio

from contrib.bench import (
    far_store,
    fill,
    history_pages,
    local_bucket,
    machine,
    measured_command,
    samples,
    targets,
)
from contrib.bench.measured_command import CommandRun
from contrib.bench.subjects import S3fsSubject, SubjectError, call, program
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO

NAME_BYTES: Final = 16
FILE_MODE: Final = 0o100644
FILES_PER_TXG: Final = 3
WATCHED: Final = b"watched"
WATCHED_EVERY: Final = 100
WEEK_S: Final = 7 * 24 * 3600  # The simulated duration of all txgs.
DAY_TXGS: Final = 17_280  # The number of txgs per day, if one is shipped every five seconds.
VERSIONS_S_MAX: Final = 2.0
DIFF_S_MAX: Final = 5.0
SNAPSHOT_S_MAX: Final = 3.0
INDEX_SHARE_MAX: Final = 0.25
MEMORY_MB_MAX: Final = 200.0
FAR_S_MAX: Final = 30.0
COPIED_PER_S_MIN: Final = 50_000.0


def run(scratch: Path, *, many: int, txgs: int, rounds: int, delay_ms: float) -> dict[str, object]:
    """Make a filesystem of *many* files and *txgs* changelogs; measure queries about its past."""
    writer = S3fsSubject("writer", scratch / "writer", options={"sync_interval": "3600"})
    fill.make_filled(writer, files=many, per_directory=1000, name_bytes=NAME_BYTES)
    last = trio.run(ship_txgs, writer, txgs)
    earlier = max(last - DAY_TXGS, last - txgs // 2, 2)
    return {"files": many, "txgs": txgs, **measured(writer, earlier, last, rounds, delay_ms)}


def measured(
    writer: S3fsSubject, earlier: int, last: int, rounds: int, delay_ms: float
) -> dict[str, object]:
    """Measure queries about the changes between two txgs."""
    with writer:
        call(*writer.words("flush", "--image"))
        mounted = _versions(writer.words("versions", paths=[writer.mountpoint / "watched"]), rounds)
        past = writer.mountpoint / ".snapshots" / f"txg={earlier}" / "directory-000000"
        first_s = _timed(lambda: subprocess.run(["ls", past], check=True, capture_output=True))
        again = [
            _timed(lambda: subprocess.run(["ls", past], check=True, capture_output=True))
            for _ in range(rounds)
        ]
        memory_mb = writer.memory()["resident_peak"] / 1e6
    near = [*program(), "{}", "--cachedir", str(writer.root / "reader"), writer.url]
    answers = _questions(near, earlier, last, rounds)
    pages = history_pages.measured(near, earlier, "watched")
    share = _bytes(writer.bucket / "history") / _bytes(writer.bucket / "changelog")
    far = _far(writer, earlier, last, delay_ms)
    peak_mb = max(memory_mb, answers.peak_mb, far.peak_mb)
    with writer:
        copied = _copied_per_s(writer, earlier)
    return {
        "seconds": {
            "versions in the mount": samples.summary(mounted),
            "versions by URL": samples.summary(answers.versions_s),
            "diff by URL": samples.summary(answers.diff_s),
            "first ls in .snapshots": first_s,
            "later ls in .snapshots": samples.summary(again),
        },
        "far": far.figures,
        "pages": pages,
        "entries_copied_per_s": copied,
        "index_share_of_changelogs": share,
        "memory_mb": {"daemon": memory_mb, "commands": max(answers.peak_mb, far.peak_mb)},
        "targets": [
            targets.at_most("versions in the mount", min(mounted), VERSIONS_S_MAX, "s"),
            targets.at_most("diff of two points a day apart", min(answers.diff_s), DIFF_S_MAX, "s"),
            targets.at_most("first use of a point in time", first_s, SNAPSHOT_S_MAX, "s"),
            targets.at_most("bytes of the index, of the changelogs", share, INDEX_SHARE_MAX),
            targets.at_most("memory", peak_mb, MEMORY_MB_MAX, "MB"),
            targets.at_least("entries of a copy of the past", copied, COPIED_PER_S_MIN, "/s"),
            *far.targets,
            *history_pages.wanted(pages),
        ],
    }


class _Answers(NamedTuple):
    """The times and the peak memory of ``versions`` and ``diff`` on a host without local state."""

    versions_s: list[float]
    diff_s: list[float]
    peak_mb: float


def _questions(command: list[str], earlier: int, last: int, rounds: int) -> _Answers:
    """Measure the commands ``versions`` and ``diff``.

    Args:
        command: the command line, with ``{}`` for the name of the command.
        earlier: a txg at most DAY_TXGS before the last one.
        last: the last txg.
        rounds: how often each command is run.
    """
    versions, diff = ([word.format(name) for word in command] for name in ("versions", "diff"))
    found = [_run(*versions, "watched", "--json") for _ in range(rounds)]
    assert all(json.loads(one.output)["versions"] for one in found), "the file has versions"
    compared = [_run(*diff, f"txg={earlier}", f"txg={last}", "--stat") for _ in range(rounds)]
    return _Answers(
        [one.seconds for one in found],
        [one.seconds for one in compared],
        max(one.peak_mb for one in [*found, *compared]),
    )


def _run(*command: str) -> CommandRun:
    """Run a command with cold kernel caches; return its time, memory and output."""
    machine.drop_kernel_caches()
    return measured_command.run(*command)


class _Far(NamedTuple):
    """The results of history queries on a bucket with added latency."""

    figures: dict[str, object]
    targets: list[targets.Target]
    peak_mb: float


def _far(writer: S3fsSubject, earlier: int, last: int, delay_ms: float) -> _Far:
    with contextlib.ExitStack() as stack:
        try:
            store = stack.enter_context(far_store.running(writer.root, delay_ms))
        except SubjectError as exc:
            return _Far({"absent": str(exc)}, [], 0.0)
        endpoint, objects = store.endpoint(), store.make_bucket("history")
        objects.rmdir()
        writer.bucket.rename(objects)
        stack.callback(objects.rename, writer.bucket)
        store.adopt(objects)
        words = ["--endpoint-url", endpoint.url, "s3://history"]
        command = [*program(), "{}", "--cachedir", str(writer.root / "far"), *words]
        answers = _questions(command, earlier, last, 1)
        requests = endpoint.traffic()
    (versions_s,), (diff_s,) = answers.versions_s, answers.diff_s
    return _Far(
        {"delay_ms": delay_ms, "versions, s": versions_s, "diff, s": diff_s, "requests": requests},
        [
            targets.at_most("versions, far bucket", versions_s, FAR_S_MAX, "s"),
            targets.at_most("diff of two points a day apart, far bucket", diff_s, FAR_S_MAX, "s"),
        ],
        answers.peak_mb,
    )


def _copied_per_s(writer: S3fsSubject, earlier: int) -> float:
    """Clone the root directory at a past point in time; return the cloned entries per second."""
    copy = writer.mountpoint / "copy"
    command = writer.words(
        "clone", f"--at=txg={earlier}", "--json", paths=[writer.mountpoint, copy]
    )
    start = time.perf_counter()
    entries = json.loads(call(*command))["entries"]
    taken_s = time.perf_counter() - start
    assert os.path.isdir(copy), "the copy is complete"
    return float(entries / taken_s)


def _versions(command: list[str], rounds: int) -> list[float]:
    """Return the seconds of a command that lists versions; each run has cold kernel caches."""
    taken = []
    for _ in range(rounds):
        machine.drop_kernel_caches()
        start = time.perf_counter()
        found = json.loads(call(*command, "--json"))
        taken.append(time.perf_counter() - start)
        assert found["versions"], "the watched file has versions"
    return taken


def _timed(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def ship_txgs(writer: S3fsSubject, txgs: int) -> int:
    """Create files in *txgs* transaction groups of an unmounted filesystem; return the last txg.

    Like a mount, this function also uploads merged changelogs (levels), the history index and
    images. The groups have simulated times in the last week, so that as many images are kept as by
    a real mount.
    """
    clock, rnd = local_bucket.EarlierClock(WEEK_S), random.Random(1)
    async with local_bucket.session_of(writer, clock) as session:
        await session.make_image()  # Upload the inserted rows, which no changelog contains.
        session.db.begin()
        watched = inodes.create(session.db, FILE_MODE, 0, 0, ROOT_INO, clock.now_ns()).ino
        dentries.add(session.db, ROOT_INO, WATCHED, watched)
        for txg in range(txgs):
            clock.advance(WEEK_S / txgs)
            session.db.begin()
            now_ns = clock.now_ns()
            for _ in range(FILES_PER_TXG):
                ino = inodes.create(session.db, FILE_MODE, 0, 0, ROOT_INO, now_ns).ino
                dentries.add(session.db, ROOT_INO, b"%032x" % rnd.getrandbits(128), ino)
                inodes.change_directory(session.db, ROOT_INO, now_ns, entries=1)
            if txg % WATCHED_EVERY == 0:
                inodes.touch(session.db, watched, mtime_ns=now_ns)
            await session.flush()
            if txg % WATCHED_EVERY == 0:
                await session.leveler.make_due()
                await session.indexer.make_due()
                if await session.image_is_due():
                    await session.make_image()
        await session.leveler.make_due()
        await session.indexer.make_due()
    return int(session.link.txg)
