"""The cost of each operation in SQL statements: counted, not timed. A higher number is a regression."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.model import ROOT_INO
from tests.fs.conftest import T0, Volume, look, make_file

COUNT = 50


class Counted:
    """Statements that were executed."""

    count = 0


@contextmanager
def counting(volume: Volume) -> Iterator[Counted]:
    """Count the statements of one group, without its first and last."""
    connection, counted = volume.session.db.connection, Counted()

    def note(_event: object) -> None:
        counted.count += 1

    volume.commit()
    volume.session.db.begin_local()
    connection.trace_v2(apsw.SQLITE_TRACE_STMT, note)
    try:
        yield counted
        volume.commit()
    finally:
        connection.trace_v2(0)


def name_of(number: int) -> bytes:
    """Return the name of one of the files."""
    return b"file-%d" % number


def create(fs: Filesystem, number: int) -> None:
    """Look up a free name, as the kernel does first, and create a file."""
    assert fs.lookup(ROOT_INO, name_of(number)) is None
    make_file(fs, name_of(number))


def find(fs: Filesystem, number: int) -> None:
    """Look up a name."""
    look(fs, name_of(number))


def set_times(fs: Filesystem, number: int) -> None:
    """Look up a name, and set the times of its inode."""
    ino = look(fs, name_of(number)).ino
    fs.attributes.set_attributes(ino, SetAttributes(ctime_ns=T0 + 5))


def rename(fs: Filesystem, number: int) -> None:
    """Move a name within its directory."""
    fs.namespace.rename(ROOT_INO, name_of(number), ROOT_INO, b"new-%d" % number)


def unlink(fs: Filesystem, number: int) -> None:
    """Remove the only name of a file that no process has open."""
    fs.namespace.unlink(ROOT_INO, b"new-%d" % number)


# Statements of each operation. SQLite's recorder reads each changed row once.
STEPS: list[tuple[Callable[[Filesystem, int], None], int]] = [
    (create, 5),  # look up, insert the name; insert the inode at the end of the group; recorder 2
    (find, 1),
    (set_times, 3),  # look up; update at the end of the group; recorder 1
    (rename, 7),  # look both names up, update the name; update the inode at the end; recorder 3
    (unlink, 5),  # look up, delete the name, delete the inode; recorder 2
]
OF_A_GROUP = 25  # the directory, counters, COMMIT; the recorder reads the table definitions


async def test_statements_of_each_operation(volume: Volume, fs: Filesystem) -> None:
    """Every inode is written once in a group, also the common directory."""
    found = {}
    for operation, _most in STEPS:
        with counting(volume) as counted:
            for number in range(COUNT):
                operation(fs, number)
        found[operation.__name__] = counted.count

    too_many = {
        operation.__name__: found[operation.__name__]
        for operation, most in STEPS
        if found[operation.__name__] > most * COUNT + OF_A_GROUP
    }
    assert too_many == {}, found


async def test_attributes_just_read_cost_no_statement(volume: Volume, fs: Filesystem) -> None:
    """A directory's attributes are requested with every change in it."""
    ino = make_file(fs, b"f")
    with counting(volume) as counted:
        for _ in range(COUNT):
            fs.getattr(ino)
            fs.getattr(ROOT_INO)
    assert counted.count <= 5  # the end of the group
