"""Many empty files, written as rows: what a mount would leave behind, in a fraction of its time.

The rows are made by the same functions that the mount calls, in the same order, so tables and
indexes fill as they would.
"""

import os
import stat
import time
from pathlib import Path
from typing import Final

from contrib.bench.subjects import S3fsSubject
from s3fs_meta.meta import dentries, inodes, local_state
from s3fs_meta.meta.database import Database
from s3fs_meta.meta.pragmas import Pragmas
from s3fs_meta.model import ROOT_INO, Ino

GROUP_FILES: Final = 5000
FILE_MODE: Final = stat.S_IFREG | 0o644
DIRECTORY_MODE: Final = stat.S_IFDIR | 0o755


def make_filled(subject: S3fsSubject, *, files: int, per_directory: int, name_bytes: int) -> None:
    """Make a filesystem, mount it once for its state directory, and fill that database."""
    subject.make()
    with subject:
        pass
    fill(subject.database(), files=files, per_directory=per_directory, name_bytes=name_bytes)


def fill(path: Path, *, files: int, per_directory: int, name_bytes: int) -> None:
    """Add directories of *per_directory* empty files, *files* in all, to a database at rest."""
    database = Database.open(path, Pragmas())
    try:
        for number, start in enumerate(range(0, files, per_directory)):
            names = range(start, min(start + per_directory, files))
            _fill_directory(database, b"directory-%06d" % number, names, name_bytes)
        database.begin()
        local_state.put(database, "changed", "1")
        database.commit()
        database.checkpoint()
    finally:
        database.close()


def _fill_directory(database: Database, name: bytes, numbers: range, name_bytes: int) -> None:
    database.begin()
    parent = _add(database, ROOT_INO, name, DIRECTORY_MODE)
    inodes.change_directory(database, ROOT_INO, time.time_ns(), entries=1, subdirectories=1)
    for count, number in enumerate(numbers, start=1):
        _add(database, parent, b"%0*d" % (name_bytes, number), FILE_MODE)
        if count % GROUP_FILES == 0:
            database.commit()
            database.begin()
    inodes.change_directory(database, parent, time.time_ns(), entries=len(numbers))
    database.commit()


def _add(database: Database, parent: Ino, name: bytes, mode: int) -> Ino:
    nlink = 2 if stat.S_ISDIR(mode) else 1
    now_ns = time.time_ns()
    made = inodes.create(database, mode, os.getuid(), os.getgid(), parent, now_ns, nlink=nlink)
    dentries.add(database, parent, name, made.ino)
    return made.ino
