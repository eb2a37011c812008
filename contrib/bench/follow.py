"""The lag of a follower behind the bucket, and the time of a failover after SIGKILL.

The lag is the time from the creation of a changelog in the bucket until stat(2) of a new name
succeeds on the follower. A failover begins with SIGKILL to the writer, includes the command
``promote --takeover``, and ends with the first write(2) on the former follower.
"""

import contextlib
import json
import os
import random
import signal
import statistics
import time
from pathlib import Path
from typing import Final

from contrib.bench import fill, samples, stall
from contrib.bench.subjects import S3fsSubject, begin, call, call_s

POLLS_S: Final = (0.2, 2.0)  # Values of the mount option poll=, whose default is 2.0.
POLL_S: Final = 0.001
TURN_FILES: Final = 50_000
IDLE_S: Final = 5.0
NAME_BYTES: Final = 16


def run(scratch: Path, *, entries: int, rounds: int) -> dict[str, object]:
    """Measure lags and failovers on a filesystem of *entries* empty files."""
    writer = S3fsSubject("writer", scratch / "writer", options={"sync_interval": "3600"})
    fill.make_filled(writer, files=entries, per_directory=1000, name_bytes=NAME_BYTES)
    lags: dict[str, object] = {}
    with writer:
        call(*writer.words("flush", "--image"))
        for number, poll_s in enumerate(POLLS_S):
            follower = _follower(writer, scratch / f"follower-{number}", poll_s)
            with follower:
                lags[f"poll={poll_s:g}"] = _lag(writer, follower, poll_s, rounds * 4)
        answers = _turns(writer, _follower(writer, scratch / "turning", POLLS_S[0]))
    failovers = [_failover(writer, scratch / f"successor-{number}") for number in range(rounds)]
    return {
        "files": entries,
        "lag": lags,
        "answers": answers,
        "failover_seconds": failovers,
        "failover_to_a_status_command": statistics.median(
            one["first_write"] / one["status"] for one in failovers
        ),
    }


def _follower(writer: S3fsSubject, root: Path, poll_s: float) -> S3fsSubject:
    options = {"ro": "", "follow": "", "poll": f"{poll_s:g}"}
    return S3fsSubject("follower", root, options=options, beside=writer)


def _lag(
    writer: S3fsSubject, follower: S3fsSubject, poll_s: float, rounds: int
) -> dict[str, object]:
    """Return the lags of new names, and the memory growth of the follower's daemon."""
    taken = []
    before = follower.memory()
    for number in range(rounds):
        name = f"{follower.root.name}-{number}"
        # Each change begins at a random time between two polls.
        time.sleep(random.uniform(0, poll_s))
        (writer.mountpoint / name).touch()
        flush = begin(*writer.words("flush", "--json"))
        while not (follower.mountpoint / name).exists():
            time.sleep(POLL_S)
        seen_s = time.time()
        txg = json.loads(flush.communicate()[0])["txg"]
        [changelog] = writer.bucket.rglob(f"{txg:012d}*")
        taken.append(seen_s - changelog.stat().st_mtime)
    ordered = sorted(taken)
    return {
        "rounds": rounds,
        "median_s": ordered[len(ordered) // 2],
        "p95_s": ordered[int(len(ordered) * 0.95)],
        "max_s": ordered[-1],
        "memory_before": before,
        "memory_after": follower.memory(),
    }


def _turns(writer: S3fsSubject, follower: S3fsSubject) -> dict[str, object]:
    """Return latencies of the follower while it applies a large txg, and while it is idle."""
    with follower:
        follower.rest()
        end_s = time.monotonic() + IDLE_S
        idle = stall.probe(follower.mountpoint, lambda: time.monotonic() < end_s)
        (writer.mountpoint / "many").mkdir()
        for number in range(TURN_FILES):
            (writer.mountpoint / "many" / str(number)).touch()
        last = follower.mountpoint / "many" / str(TURN_FILES - 1)
        call(*writer.words("flush"))
        start_s = time.monotonic()
        busy = stall.probe(follower.mountpoint, lambda: not last.exists())
        taken_s = time.monotonic() - start_s
    return {
        "files_in_the_group": TURN_FILES,
        "seconds": taken_s,
        "applying": samples.latencies(busy),
        "idle": samples.latencies(idle),
    }


def _failover(writer: S3fsSubject, root: Path) -> dict[str, float]:
    """Kill the writer, promote a follower, write a file on it; return the seconds of each step."""
    follower = _follower(writer, root, 2.0)
    with writer, follower:
        (writer.mountpoint / root.name).write_bytes(b"before")
        call(*writer.words("flush"))
        while not (follower.mountpoint / root.name).exists():
            time.sleep(POLL_S)
        status_s = call_s(*follower.words("status"))  # The time of a trivial command.
        assert writer.pid is not None, "the writer is not mounted"
        os.kill(writer.pid, signal.SIGKILL)
        start = time.monotonic()
        call(*follower.words("promote", "--takeover"))
        promoted_s = time.monotonic() - start
        (follower.mountpoint / "first").write_bytes(b"after")
        written_s = time.monotonic() - start
        with contextlib.suppress(OSError):
            (follower.mountpoint / "first").unlink()
    return {"status": status_s, "promote": promoted_s, "first_write": written_s}
