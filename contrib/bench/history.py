"""Questions about the past: versions of a file, differences of two points, files in ``.snapshots``.

The filesystem has *many* empty files and *txgs* changelogs after them; each changelog creates a few
files, and every hundredth changes one watched file. The bucket is a directory, so no figure includes
network time. Each command is a process of its own: its start, some tenths of a second, is included.
"""

import json
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from contrib.bench import fill, local_bucket, machine, samples, targets
from contrib.bench.subjects import S3fsSubject, call, program
from s3fs_meta.clock import SystemClock
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO

NAME_BYTES: Final = 16
FILE_MODE: Final = 0o100644
FILES_PER_TXG: Final = 3
WATCHED: Final = b"watched"
WATCHED_EVERY: Final = 100
DAY_TXGS: Final = 17_280  # a txg every five seconds
VERSIONS_S_MAX: Final = 2.0
DIFF_S_MAX: Final = 5.0
SNAPSHOT_S_MAX: Final = 3.0
INDEX_SHARE_MAX: Final = 0.25
MEMORY_MB_MAX: Final = 200.0


def run(scratch: Path, *, many: int, txgs: int, rounds: int) -> dict[str, object]:
    """Make a filesystem of *many* files and *txgs* changelogs; measure questions about its past."""
    writer = S3fsSubject("writer", scratch / "writer", options={"sync_interval": "3600"})
    fill.make_filled(writer, files=many, per_directory=1000, name_bytes=NAME_BYTES)
    last = trio.run(_work, writer, txgs)
    earlier = max(last - DAY_TXGS, last - txgs // 2, 2)
    with writer:
        call(*writer.words("flush", "--image"))
        mounted = _versions(writer.words("versions", paths=[writer.mountpoint / "watched"]), rounds)
        past = writer.mountpoint / ".snapshots" / f"txg={earlier}"
        first_s = _timed(lambda: subprocess.run(["ls", past], check=True, capture_output=True))
        again = [
            _timed(lambda: subprocess.run(["ls", past], check=True, capture_output=True))
            for _ in range(rounds)
        ]
        memory_mb = writer.memory()["resident_peak"] / 1e6
    by_url = _versions([*_command(writer, "versions"), "watched"], rounds)
    diff = [
        _timed(lambda: call(*_command(writer, "diff"), f"txg={earlier}", f"txg={last}", "--stat"))
        for _ in range(rounds)
    ]
    share = _bytes(writer.bucket / "history") / _bytes(writer.bucket / "changelog")
    figures = {
        "files": many,
        "txgs": txgs,
        "seconds": {
            "versions in the mount": samples.summary(mounted),
            "versions by URL": samples.summary(by_url),
            "diff by URL": samples.summary(diff),
            "first ls in .snapshots": first_s,
            "later ls in .snapshots": samples.summary(again),
        },
        "index_share_of_changelogs": share,
        "daemon_memory_mb": memory_mb,
    }
    figures["targets"] = [
        targets.at_most("versions in the mount", min(mounted), VERSIONS_S_MAX, "s"),
        targets.at_most("diff of two points a day apart", min(diff), DIFF_S_MAX, "s"),
        targets.at_most("first use of a point in time", first_s, SNAPSHOT_S_MAX, "s"),
        targets.at_most("bytes of the index, of the changelogs", share, INDEX_SHARE_MAX),
        targets.at_most("memory of the daemon", memory_mb, MEMORY_MB_MAX, "MB"),
    ]
    return figures


def _command(subject: S3fsSubject, name: str) -> list[str]:
    """Return the first words of a command on a host without local state."""
    return [*program(), name, "--cachedir", str(subject.root / "reader"), subject.url]


def _versions(command: list[str], rounds: int) -> list[float]:
    """Return the seconds of a command that lists versions, each time with cold kernel caches."""
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


async def _work(writer: S3fsSubject, txgs: int) -> int:
    """Ship changelogs, with their levels and the index; return the last txg."""
    clock, rnd = SystemClock(), random.Random(1)
    async with local_bucket.session_of(writer) as session:
        await session.make_image()  # no changelog has the files that were filled in
        session.db.begin()
        watched = inodes.create(session.db, FILE_MODE, 0, 0, ROOT_INO, clock.now_ns()).ino
        dentries.add(session.db, ROOT_INO, WATCHED, watched)
        for txg in range(txgs):
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
        await session.leveler.make_due()
        await session.indexer.make_due()
    return int(session.link.txg)
