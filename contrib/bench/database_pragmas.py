"""Measure the speed of SQLite for each page size, ``synchronous`` setting and journal mode.

*Database on the mount*: an application's database with 10,000 rows of 200 bytes is measured
alternately on s3fs-meta and on the disk. Each transaction changes one random row.

*Our own database*: the metadata database is measured on one mount for each setting. The benchmark
makes files, and calls fsync on the directory after each file. It also changes attributes without
fsync; the daemon commits many of these changes in one transaction.
"""

import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from typing_extensions import override

from contrib.bench import samples
from contrib.bench.names import DISK, OURS
from contrib.bench.subjects import PlainDirectory, S3fsSubject, Subject

ROWS: Final = 10_000
ROW_BYTES: Final = 200
SEED: Final = 1
PAGES: Final = (1024, 4096, 16384)
OUR_PAGES: Final = ("4K", "16K", "64K")
CHANGES_PER_SYNC: Final = 20  # Number of attribute changes without fsync per file with fsync.


class Setting(NamedTuple):
    """One combination of pragmas for an application's database or for the metadata database."""

    journal_mode: str
    synchronous: str

    @override
    def __str__(self) -> str:
        """Return the name of these pragmas in the result tables."""
        return f"{self.journal_mode}, {self.synchronous}"


def _settings(text: str) -> tuple[Setting, ...]:
    return tuple(Setting(*each.split("/")) for each in text.split())


SETTINGS: Final = _settings(
    "DELETE/FULL DELETE/NORMAL DELETE/OFF TRUNCATE/FULL WAL/FULL WAL/NORMAL WAL/OFF"
)
OUR_SETTINGS: Final = _settings("wal/normal wal/full wal/off delete/normal off/off")


def run(scratch: Path, *, updates: int, rounds: int) -> dict[str, object]:
    """Measure databases on the mount, then the metadata database; return the results."""
    return {
        "updates": updates,
        "rounds": rounds,
        "database on the mount: one update": _application(scratch, updates, rounds),
        "our own database": dict(_own(scratch, updates)),
    }


# --- changes on the mount ----------------------------------------------------------------------


def _application(scratch: Path, updates: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Return milliseconds per update with each setting, on s3fs-meta and on the disk."""
    ours = S3fsSubject(OURS, scratch / "ours")
    ours.make()
    taken: dict[str, dict[str, list[float]]] = {}
    with ours, PlainDirectory(DISK, scratch / "disk") as disk:
        for number, (setting, page) in product(range(rounds), product(SETTINGS, PAGES)):
            both: tuple[Subject, ...] = (ours, disk) if number % 2 == 0 else (disk, ours)
            row = taken.setdefault(f"{setting}, {page:,}", {OURS: [], DISK: []})
            for subject in both:
                row[subject.name].append(_updated_s(subject, setting, page, updates) / updates)
    return {
        name: {
            **{f"{who}, ms": samples.summary([s * 1e3 for s in each]) for who, each in row.items()},
            "speed against the disk": samples.ratio(row[DISK], row[OURS]),
        }
        for name, row in taken.items()
    }


def _updated_s(subject: Subject, setting: Setting, page: int, updates: int) -> float:
    """Make a database, update its rows one by one, remove it; return the seconds of the updates."""
    path = subject.mountpoint / "application.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size={page}")
        [found] = connection.execute(f"PRAGMA journal_mode={setting.journal_mode}").fetchone()
        assert found.upper() == setting.journal_mode, f"SQLite uses {found} instead of {setting}"
        connection.execute(f"PRAGMA synchronous={setting.synchronous}")
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, count INTEGER, filling BLOB)")
        connection.execute("BEGIN")
        rows = ((number, 0, os.urandom(ROW_BYTES)) for number in range(ROWS))
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
        subject.rest()
        chosen = random.Random(SEED).choices(range(ROWS), k=updates)
        start = time.perf_counter()
        for number in chosen:
            connection.execute("UPDATE t SET count = count + 1 WHERE id = ?", (number,))
        taken_s = time.perf_counter() - start
    path.unlink()
    return taken_s


# --- changes in the metadata database ----------------------------------------------------------


def _own(scratch: Path, updates: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the name and the results of each setting for the metadata database."""
    for setting, page in product(OUR_SETTINGS, OUR_PAGES):
        options = {**setting._asdict(), "page_size": page, "sync_interval": "3600"}
        name = f"{setting}, {page}"
        subject = S3fsSubject(name, scratch / f"{'-'.join(setting)}-{page}", options=options)
        subject.make()
        with subject:
            yield name, _metadata(subject, updates)


def _metadata(subject: S3fsSubject, updates: int) -> dict[str, float]:
    """Return the times to make a file with fsync, and to change an attribute without fsync."""
    paths = [str(subject.mountpoint / f"file-{number:06d}") for number in range(updates)]
    directory = os.open(subject.mountpoint, os.O_RDONLY)
    try:
        subject.rest()
        synced_s = _synced_s(directory, paths)
    finally:
        os.close(directory)
    subject.rest()
    before_s = subject.cpu_s()
    start = time.perf_counter()
    for number in range(CHANGES_PER_SYNC):
        for path in paths:
            os.chmod(path, 0o600 + number)
    changed_s = time.perf_counter() - start
    subject.rest()
    changes = CHANGES_PER_SYNC * updates
    return {
        "a name and its fsync, ms": synced_s / updates * 1e3,
        "a change, us": changed_s / changes * 1e6,
        "a change, processor, us": (subject.cpu_s() - before_s) / changes * 1e6,
    }


def _synced_s(directory: int, paths: list[str]) -> float:
    start = time.perf_counter()
    for path in paths:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        os.fsync(directory)
    return time.perf_counter() - start
