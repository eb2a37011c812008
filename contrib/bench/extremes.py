"""The speed and memory use with a file, a directory and a bucket of extreme sizes.

*Sparse*: the benchmark writes a block at the end of a file of 16 TiB and 1,000 blocks at random
offsets, reads holes, and truncates and removes the file. *Wide*: one directory has very many names.
*Huge*: the database has rows of blocks and packs for 100 TiB of content, but the bucket contains no
packs. fsck reads a listing of the bucket that is generated from the rows; status and reclaim also
run. The memory results are the growth of the daemon's memory, and the peak memory of fsck.
"""

import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from contrib.bench import fill, samples, targets
from contrib.bench.subjects import S3fsSubject, call
from contrib.bench.subjects import run as run_program
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries, inodes
from s3fs_meta.model import ROOT_INO, Ino

TIB: Final = 1 << 40
MIB: Final = 1 << 20
SPARSE_BYTES: Final = 16 * TIB
SCATTERED: Final = 1000
BLOCK_BYTES: Final = 8 * MIB  # Block size of the huge filesystem.
PACK_BLOCKS: Final = 2
FILES: Final = 100  # Number of files in the huge filesystem; each has an equal share of the blocks.
FIRST_INO: Final = 101
SECONDS_MAX: Final = 1.0  # Maximum time of one operation on a file of any size.
GROWN_MB_MAX: Final = 64.0
FSCK_MB_MAX: Final = 512.0

Figures = dict[str, Any]


def run(scratch: Path, *, names: int, tib: int) -> Figures:
    """Measure the sparse file, the wide directory and the huge bucket."""
    sparse = _sparse(S3fsSubject("sparse", scratch / "sparse"))
    wide = _wide(S3fsSubject("wide", scratch / "wide"), names)
    huge = _huge(S3fsSubject("huge", scratch / "huge"), tib)
    longest = max(taken for step, taken in sparse["seconds"].items() if step != "fsck")
    return {
        "sparse": sparse,
        "wide": wide,
        "huge": huge,
        "targets": [
            targets.at_most("an operation on a file of 16 TiB", longest, SECONDS_MAX, "s"),
            targets.at_most("the daemon grows with it", sparse["grown MB"], GROWN_MB_MAX, "MB"),
            targets.at_most("the first name of a listing", wide["first name s"], SECONDS_MAX, "s"),
            targets.at_most("the daemon grows by a listing", wide["grown MB"], GROWN_MB_MAX, "MB"),
            targets.at_most("fsck of rows", huge["fsck MB"], FSCK_MB_MAX, "MB"),
        ],
    }


def _timed(seconds: dict[str, float], step: str, work: Callable[[], object]) -> None:
    seconds[step] = samples.seconds(work)


def _resident_mb(subject: S3fsSubject) -> float:
    return subject.memory()["resident"] / 1e6


def _fsck(subject: S3fsSubject) -> None:
    run_program(["fsck", "-n", subject.url, "--cachedir", str(subject.state)])


# --- one huge file -----------------------------------------------------------------------------


def _sparse(subject: S3fsSubject) -> Figures:
    subject.make()
    seconds: dict[str, float] = {}
    dice = random.Random(1)
    with subject:
        before_mb = _resident_mb(subject)
        path = subject.mountpoint / "sparse"
        fd = os.open(path, os.O_CREAT | os.O_RDWR)
        _timed(seconds, "give it its length", lambda: os.truncate(fd, SPARSE_BYTES))
        _timed(seconds, "write its end", lambda: _write_all(fd, [SPARSE_BYTES - 4096]))
        places = [dice.randrange(SPARSE_BYTES // 4096) * 4096 for _ in range(2 * SCATTERED)]
        written, holes = places[:SCATTERED], places[SCATTERED:]
        _timed(seconds, "write one of 1,000 blocks", lambda: _write_all(fd, written))
        _timed(seconds, "read one of 1,000 holes", lambda: [os.pread(fd, 4096, at) for at in holes])
        for step in ("write one of 1,000 blocks", "read one of 1,000 holes"):
            seconds[step] /= SCATTERED
        _timed(seconds, "ask for data and holes", lambda: _seek(fd))
        _timed(seconds, "cut to half", lambda: os.truncate(fd, SPARSE_BYTES // 2))
        _timed(seconds, "lengthen again", lambda: os.truncate(fd, SPARSE_BYTES))
        os.close(fd)
        grown_mb = _resident_mb(subject) - before_mb
    _timed(seconds, "fsck", lambda: _fsck(subject))
    with subject:
        _timed(seconds, "unlink", (subject.mountpoint / "sparse").unlink)
    return {"seconds": seconds, "grown MB": grown_mb}


def _write_all(fd: int, places: list[int]) -> None:
    for place in places:
        os.pwrite(fd, b"x" * 4096, place)
    os.fsync(fd)


def _seek(fd: int) -> None:
    """Find the first hole: at 0, or only at the end because the file is open for writing."""
    assert os.lseek(fd, 0, os.SEEK_HOLE) in {0, SPARSE_BYTES}


# --- one huge directory ------------------------------------------------------------------------


def _wide(subject: S3fsSubject, names: int) -> Figures:
    fill.make_filled(subject, files=names, per_directory=names, name_bytes=16)
    bytes_per_name = fill.bytes_per_file(subject, names)
    seconds: dict[str, float] = {}
    with subject:
        top = next(subject.mountpoint.iterdir())
        before_mb = _resident_mb(subject)
        first_s, all_s, found = _list(top)
        assert found == names, f"{found} of {names} names were listed"
        grown_mb = _resident_mb(subject) - before_mb
        _timed(seconds, "create", (top / "new").touch)
        _timed(seconds, "look up what is not there", (top / "missing").exists)
        _timed(seconds, "rename", lambda: (top / "new").rename(top / "renamed"))
        _timed(seconds, "unlink", (top / "renamed").unlink)
        command = subject.words("rm", "--wait", paths=[top])
        _timed(seconds, "s3fs-meta rm --wait", lambda: call(*command))
    return {
        "names": names,
        "bytes per name": bytes_per_name,
        "first name s": first_s,
        "all names s": all_s,
        "seconds": seconds,
        "grown MB": grown_mb,
    }


def _list(directory: Path) -> tuple[float, float, int]:
    """Return the seconds until the first and last name of a listing, and the number of names."""
    began_s, first_s, count = time.perf_counter(), 0.0, 0
    with os.scandir(directory) as found:
        for _ in found:
            count += 1
            first_s = first_s or time.perf_counter() - began_s
    return first_s, time.perf_counter() - began_s, count


# --- one huge bucket ---------------------------------------------------------------------------


def _huge(subject: S3fsSubject, tib: int) -> Figures:
    subject.make(["--plain", "--block-size", f"{BLOCK_BYTES // MIB}M"])
    with subject:
        pass
    seconds: dict[str, float] = {}
    _timed(seconds, "make the rows", lambda: _make_rows(subject.database(), tib))
    database_bytes = subject.database().stat().st_size
    found, seconds["fsck"], peak_mb = _check_simulated(subject)
    _timed(seconds, "mount", subject.start)
    try:
        mounted_mb = _resident_mb(subject)
        for command in ("status", "reclaim"):
            words = subject.words(command)
            _timed(seconds, command, partial(call, *words))
        grown_mb = _resident_mb(subject) - mounted_mb
    finally:
        subject.stop()
    return {
        "TiB": tib,
        "blocks": tib * TIB // BLOCK_BYTES,
        "database MB": database_bytes / 1e6,
        "fsck MB": peak_mb,
        "fsck found": found,
        "grown MB": grown_mb,
        "seconds": seconds,
    }


def _check_simulated(subject: S3fsSubject) -> tuple[list[str], float, float]:
    """Run fsck; return its report, its duration in seconds, and its peak memory in MB."""
    words = [sys.executable, "-m", "contrib.bench.check_simulated"]
    words += [str(subject.bucket), str(subject.database())]
    began_s = time.perf_counter()
    peak_bytes, *found = call(*words).splitlines()
    return found, time.perf_counter() - began_s, int(peak_bytes) / 1e6


def _make_rows(path: Path, tib: int) -> None:
    """Insert the rows of files, blocks and packs that writing *tib* TiB would produce."""
    blocks = tib * TIB // BLOCK_BYTES
    per_file = blocks // FILES
    blocks = per_file * FILES
    packs = -(-blocks // PACK_BLOCKS)
    db = sqlite3.connect(path, isolation_level=None)
    try:
        db.execute("PRAGMA cache_size = -262144")
        db.execute("BEGIN")
        indexes = db.execute(
            "SELECT name, sql FROM sqlite_schema WHERE tbl_name = 'blocks' AND sql LIKE '%INDEX%'"
        ).fetchall()
        for name, _sql in indexes:
            db.execute(f"DROP INDEX {name}")
        for statement, bound in _statements(blocks, packs, per_file):
            db.execute(statement, bound)
        for _name, sql in indexes:
            db.execute(sql)
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()
    _name_files(path)


def _statements(blocks: int, packs: int, per_file: int) -> list[tuple[str, tuple[int, ...]]]:
    counted = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
    step = (1 << 32) // packs
    name = f"printf('%08x%024x', (i - 1) * {step}, i)"
    row = (
        f"INSERT INTO inodes SELECT {FIRST_INO - 1} + i, 33188, 1, 0, 0, {per_file * BLOCK_BYTES},"
        f" {per_file}, 1, 0, 0, 0, 1, 0, 0 FROM n"
    )
    stored = PACK_BLOCKS * BLOCK_BYTES
    return [
        (f"{counted} {row}", (FILES,)),
        (
            f"{counted} INSERT INTO packs SELECT i, 'pack/' || substr({name}, 1, 2) || '/1-' ||"
            f" {name}, 2, {stored + MIB}, {stored}, NULL FROM n",
            (packs,),
        ),
        (
            f"{counted} INSERT INTO blocks SELECT i, 1, {BLOCK_BYTES}, randomblob(32),"
            f" 1 + (i - 1) / {PACK_BLOCKS}, (i - 1) % {PACK_BLOCKS} * {BLOCK_BYTES}, {BLOCK_BYTES}"
            " FROM n",
            (blocks,),
        ),
        (
            f"{counted} INSERT INTO block_map SELECT {FIRST_INO} + (i - 1) / {per_file},"
            f" (i - 1) % {per_file}, i FROM n",
            (blocks,),
        ),
        (
            "UPDATE counters SET next_ino = 1000, next_block = ?, inodes = inodes + ?,"
            " file_bytes = ?",
            (blocks + 1, FILES, blocks * BLOCK_BYTES),
        ),
        (
            "UPDATE totals SET next_pack = ?, block_bytes = ?, stored_bytes = ?",
            (packs + 1, blocks * BLOCK_BYTES, packs * (stored + MIB)),
        ),
    ]


def _name_files(path: Path) -> None:
    database = Database.open(path, Pragmas())
    try:
        database.begin()
        for number in range(FILES):
            dentries.add(database, ROOT_INO, b"%d" % number, Ino(FIRST_INO + number))
        inodes.change_directory(database, ROOT_INO, time.time_ns(), entries=FILES)
        database.commit()
        database.checkpoint()
    finally:
        database.close()
