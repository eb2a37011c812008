"""Many files for benchmarks: rows of empty files, and tar archives of small files.

Rows are inserted directly into the metadata database of an unmounted filesystem, for 1,000 files
with each statement. A mount would insert the same rows in the same order, so tables and indexes
have the same pages. The insertion does not check whether a name already exists.
"""

import io
import os
import stat
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from contrib.bench.subjects import S3fsSubject
from s3fs_meta.limits import COOKIE_COLLISION_BITS
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import dentries, inodes, local_state
from s3fs_meta.model import ROOT_INO, Ino

GROUP_FILES: Final = 1000
FILE_BYTES: Final = 4096
ARCHIVE_PER_DIRECTORY: Final = 100
FILE_MODE: Final = stat.S_IFREG | 0o644
DIRECTORY_MODE: Final = stat.S_IFDIR | 0o755


class Archive(NamedTuple):
    """A tar archive of small incompressible files, each of which begins with its number."""

    path: Path
    files: int

    @staticmethod
    def name(number: int) -> str:
        """Return the path of file number *number* in the archive."""
        return f"d{number // ARCHIVE_PER_DIRECTORY:05d}/file-{number:06d}"


def archive(folder: Path, files: int) -> Archive:
    """Write a tar archive of *files* files into *folder*."""
    made = Archive(folder / f"{files}.tar", files)
    with tarfile.open(made.path, "w") as tar:
        for number in range(files):
            member = tarfile.TarInfo(made.name(number))
            member.size = FILE_BYTES
            stamp = b"%08d" % number
            tar.addfile(member, io.BytesIO(stamp + os.urandom(FILE_BYTES - len(stamp))))
    return made


def make_filled(subject: S3fsSubject, *, files: int, per_directory: int, name_bytes: int) -> None:
    """Make a filesystem, mount it once to create its database, and insert rows of files."""
    subject.make()
    with subject:
        pass
    fill(subject.database(), files=files, per_directory=per_directory, name_bytes=name_bytes)


def bytes_per_file(subject: S3fsSubject, files: int) -> float:
    """Return the size of the database, its WAL and its ``-shm`` file, divided by *files*."""
    database = subject.database()
    belonging = database.parent.glob(database.name + "*")
    return sum(path.stat().st_size for path in belonging) / files


def fill(path: Path, *, files: int, per_directory: int, name_bytes: int) -> None:
    """Insert rows of empty files in directories into the database of an unmounted filesystem."""
    database = Database.open(path, Pragmas())
    try:
        for number, start in enumerate(range(0, files, per_directory)):
            names = range(start, min(start + per_directory, files))
            _fill_directory(database, directory_name(number), names, name_bytes)
        database.begin()
        local_state.put(database, "changed", "1")
        database.commit()
        database.checkpoint()
    finally:
        database.close()


def directory_name(number: int) -> bytes:
    """Return the name of directory number *number* in the root."""
    return b"directory-%06d" % number


def _fill_directory(database: Database, name: bytes, numbers: range, name_bytes: int) -> None:
    database.begin()
    parent = _add(database, ROOT_INO, name, DIRECTORY_MODE)
    inodes.change_directory(database, ROOT_INO, time.time_ns(), entries=1, subdirectories=1)
    for start in range(numbers.start, numbers.stop, GROUP_FILES):
        names = [
            b"%0*d" % (name_bytes, number)
            for number in numbers[start - numbers.start :][:GROUP_FILES]
        ]
        _add_files(database, parent, names)
        database.commit()
        database.begin()
    inodes.change_directory(database, parent, time.time_ns(), entries=len(numbers))
    database.commit()


def _add_files(database: Database, parent: Ino, names: Sequence[bytes]) -> None:
    counters, now_ns = database.counters, time.time_ns()
    first = counters.next_ino
    counters.next_ino = Ino(first + len(names))
    counters.inodes += len(names)
    counters.dentries += len(names)
    own = (FILE_MODE, 1, os.getuid(), os.getgid(), 0, 0, now_ns, 0, 0, 0, parent, 0, 0)
    rows = ((ino, *own) for ino in range(first, first + len(names)))
    database.run_many(f"INSERT INTO inodes VALUES ({','.join('?' * 14)})", rows)
    hashed, shift = database.name_hash, COOKIE_COLLISION_BITS
    database.run_many(
        "INSERT INTO dentries VALUES (?, ?, ?, ?)",
        ((parent, hashed(name) << shift, name, ino) for ino, name in enumerate(names, first)),
    )


def _add(database: Database, parent: Ino, name: bytes, mode: int) -> Ino:
    nlink = 2 if stat.S_ISDIR(mode) else 1
    now_ns = time.time_ns()
    made = inodes.create(database, mode, os.getuid(), os.getgid(), parent, now_ns, nlink=nlink)
    dentries.add(database, parent, name, made.ino)
    return made.ino
