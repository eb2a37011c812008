"""A SQLite benchmark on the mount: rows inserted one by one, each in a transaction of its own.

The shape is that of the Phoronix SQLite test: every insert waits for its fsync. Under the journal
DELETE and under WAL, each with ``synchronous=FULL``, in turns on s3fs-meta, on a do-nothing
filesystem over plain files, on the disk itself and on JuiceFS. Each turn has a database of its own.
"""

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from contrib.bench import machine, published, samples
from contrib.bench.peers import JuiceSubject, juicefs
from contrib.bench.subjects import NullSubject, PlainDirectory, S3fsSubject, Subject

JOURNALS: Final = ("DELETE", "WAL")
OURS: Final = "s3fs-meta"
MAKE: Final = "CREATE TABLE test (id INTEGER PRIMARY KEY, number INTEGER, text VARCHAR(100))"
INSERT: Final = "INSERT INTO test (number, text) VALUES (?, ?)"
TEXT: Final = "fifty-nine thousand three hundred and sixty-two point one"
BUSY_S: Final = 10.0


def run(scratch: Path, *, inserts: int, rounds: int) -> dict[str, object]:
    """Measure every filesystem that is here and return the figures."""
    with ExitStack() as stack:
        subjects, absent = everywhere(scratch)
        for subject in subjects:
            stack.enter_context(subject)
        taken = _measured(subjects, inserts, rounds)
    milliseconds = {
        name: {
            f"{journal}, ms": samples.summary([each / inserts * 1e3 for each in values])
            for journal, values in journals.items()
        }
        for name, journals in taken.items()
    }
    return {
        "inserts": inserts,
        "rounds": rounds,
        "absent": absent,
        "milliseconds_per_insert": milliseconds,
        "WAL against DELETE": _ratios(taken),
        "speed of s3fs-meta against": {
            other: {
                journal: samples.ratio(journals[journal], taken[OURS][journal])
                for journal in JOURNALS
            }
            for other, journals in taken.items()
            if other != OURS
        },
    }


def everywhere(scratch: Path) -> tuple[list[Subject], list[str]]:
    """Return where a database can be, not yet mounted, and what is absent."""
    ours = S3fsSubject(OURS, scratch / "ours")
    ours.make()
    subjects: list[Subject] = [
        ours,
        NullSubject("do-nothing", scratch / "null", plain_files=True),
        PlainDirectory("ext4", scratch / "disk"),
    ]
    binary = juicefs()
    if binary is None:
        return subjects, ["JuiceFS"]
    juice = JuiceSubject("JuiceFS", scratch / "juice", binary)
    juice.make()
    return [*subjects, juice], []


def _measured(
    subjects: Sequence[Subject], inserts: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    taken: dict[str, dict[str, list[float]]] = {
        subject.name: {journal: [] for journal in JOURNALS} for subject in subjects
    }
    for number in range(rounds):
        first = number % len(subjects)
        for subject in [*subjects[first:], *subjects[:first]]:
            for journal in JOURNALS:
                if subject.pid:
                    machine.settle(subject.pid)
                path = subject.mountpoint / f"{journal}-{number}.db"
                taken[subject.name][journal].append(_inserted_s(path, journal, inserts))
    return taken


def _inserted_s(path: Path, journal: str, inserts: int) -> float:
    """Return the seconds of all inserts."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=BUSY_S)) as connection:
        [found] = connection.execute(f"PRAGMA journal_mode={journal}").fetchone()
        assert found.upper() == journal, f"{found} instead of {journal}"
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(MAKE)
        start = time.perf_counter()
        for number in range(inserts):
            connection.execute(INSERT, (number, TEXT))
        return time.perf_counter() - start


def _ratios(taken: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return how many times as fast WAL is, published and here."""
    was = published.INSERTS_S
    rows = {"published, Btrfs": {"times": was["DELETE"] / was["WAL"]}}
    for name, journals in taken.items():
        rows[f"here, {name}"] = {"times": samples.ratio(journals["DELETE"], journals["WAL"])}
    return rows
