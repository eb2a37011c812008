"""What the rows of metadata cost: microseconds per operation, bytes per file.

    python contrib/bench/meta_rows.py speed [--files 100000] [--directory DIR]
    python contrib/bench/meta_rows.py size [--files 100000] [--directory DIR]

``speed`` works on a database with so many files in one directory, under WAL and NORMAL; single
operations are in CPU time, commits in wall time.
``size`` fills one directory, then many of 100 and of 1,000 files, and prints the bytes per file
of the whole database, everything included; bound: 110.
"""

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from s3fs_meta.meta import dentries, inodes
from s3fs_meta.meta.database import Database
from s3fs_meta.meta.pragmas import Pragmas
from s3fs_meta.model import ROOT_INO, Ino

PROPERTIES = {"uuid": b"0" * 36, "block_bytes": b"1048576", "cookie_key": b"k" * 16}
NOW_NS = 1_760_000_000_123_456_789
GROUP = 500


def name_of(number: int) -> bytes:
    """Return a name of 16 bytes."""
    return b"file-%011d" % number


def create_file(db: Database, parent: Ino, name: bytes, now_ns: int) -> Ino:
    """Create one empty file as the filesystem does."""
    db.begin()
    made = inodes.create(db, 0o100644, 1000, 1000, parent, now_ns)
    dentries.add(db, parent, name, made.ino)
    inodes.change_directory(db, parent, now_ns, entries=1)
    return made.ino


def make_directory(db: Database, number: int) -> Ino:
    """Create one directory below the root."""
    db.begin()
    made = inodes.create(db, 0o040755, 1000, 1000, ROOT_INO, NOW_NS, nlink=2)
    dentries.add(db, ROOT_INO, b"dir-%012d" % number, made.ino)
    inodes.change_directory(db, ROOT_INO, NOW_NS, entries=1, subdirectories=1)
    return made.ino


def fill(db: Database, files: int, per_directory: int) -> None:
    """Create *files* empty files, directory after directory."""
    parent = ROOT_INO
    for number in range(files):
        if per_directory and number % per_directory == 0:
            parent = make_directory(db, number // per_directory)
        # The clock of a real run differs from file to file.
        create_file(db, parent, name_of(number), NOW_NS + number * 12_345)
        if number % GROUP == GROUP - 1:
            db.commit()
        if number % 100_000 == 99_999:
            db.checkpoint()
    db.commit()


def size_bytes(db: Database) -> int:
    """Return the bytes of the database."""
    pages, page = db.one("PRAGMA page_count"), db.one("PRAGMA page_size")
    assert pages is not None
    assert page is not None
    return int(pages[0]) * int(page[0])


def measure(what: str, count: int, work: Callable[[int], object]) -> None:
    """Print the best of three runs, in microseconds of CPU per call."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        for number in range(count):
            work(number)
        best = min(best, time.process_time() - start)
    print(f"{what:<52} {best / count * 1e6:8.2f} us")


def speed(directory: Path, files: int) -> None:
    """Print the cost of each operation."""
    db = Database.create(directory / "speed.db", Pragmas(), PROPERTIES)
    start = time.perf_counter()
    fill(db, files, 0)
    print(
        f"{'create, groups of 500, commits included':<52} "
        f"{(time.perf_counter() - start) / files * 1e6:8.2f} us"
    )
    count = min(files, 20_000)
    chosen = random.Random(1).sample(range(files), count)
    names = [name_of(number) for number in chosen]
    inos = [Ino(number + 2) for number in chosen]
    for where in ("outside a group", "inside a group"):
        if where == "inside a group":
            db.begin()
        measure(
            f"lookup (join), {where}",
            count,
            lambda n: dentries.find_attributes(db, ROOT_INO, names[n]),
        )
        measure(
            f"lookup of a missing name, {where}",
            count,
            lambda n: dentries.find_attributes(db, ROOT_INO, b"missing-%d" % n),
        )
        measure(f"getattr, {where}", count, lambda n: inodes.find(db, inos[n]))
        measure(
            f"name to inode only, {where}", count, lambda n: dentries.find(db, ROOT_INO, names[n])
        )
    measure("hash of a name", count, lambda n: db.name_hash(names[n]))
    measure(
        "note a write (size, mtime)",
        count,
        lambda n: inodes.set_size_and_mtime(db, inos[n], 0, NOW_NS + n, 0, size_before=0),
    )
    measure("replace all attributes", count, lambda n: inodes.replace(db, inodes.get(db, inos[n])))
    db.rollback()
    fresh = itertools.count(files)
    db.begin()
    measure(
        "create (inode, dentry, directory), no commit",
        count,
        lambda _n: create_file(db, ROOT_INO, name_of(next(fresh)), NOW_NS),
    )
    start = time.perf_counter()
    db.commit()
    print(
        f"{f'commit of these {3 * count} creates':<52} "
        f"{(time.perf_counter() - start) * 1e6:8.0f} us"
    )
    commits(db, fresh)
    db.close()


def commits(db: Database, fresh: Iterator[int]) -> None:
    """Print the cost of a commit by the size of its group, and the longest."""
    for operations in (1, 10, 100, GROUP):
        taken = []
        for _ in range(200):
            for _ in range(operations):
                create_file(db, ROOT_INO, name_of(next(fresh)), NOW_NS)
            start = time.perf_counter()
            db.commit()
            taken.append(time.perf_counter() - start)
            if db.wal_bytes > 64 << 20:
                db.checkpoint()
        taken.sort()
        print(
            f"{f'commit of {operations} creates: median, longest':<52} "
            f"{taken[100] * 1e6:8.0f} us {taken[-1] * 1e6:8.0f} us"
        )


def size(directory: Path, files: int) -> None:
    """Print bytes per file."""
    for per_directory in (0, 1000, 100):
        path = directory / f"size-{per_directory}.db"
        db = Database.create(path, Pragmas(synchronous="off"), PROPERTIES)
        fill(db, files, per_directory)
        where = f"{per_directory} per directory" if per_directory else "one directory"
        print(f"{files:,} files, {where:<20} {size_bytes(db) / files:6.1f} bytes per file")
        db.close()
        path.unlink()


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed", "size"))
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        {"speed": speed, "size": size}[arguments.what](Path(scratch), arguments.files)


if __name__ == "__main__":
    main()
