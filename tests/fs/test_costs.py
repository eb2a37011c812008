"""Tests of the number of SQL statements of each operation; a higher number is a regression."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw
import pytest

from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.model import ROOT_INO
from tests.fs.conftest import BLOCK_BYTES, T0, Volume, look, make_file

COUNT = 50


class Counted:
    """A count of executed SQL statements."""

    count = 0


@contextmanager
def counting(volume: Volume) -> Iterator[Counted]:
    """Count the SQL statements of one commit group, without those that begin and end it."""
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
    """Return the name of the file with the given number."""
    return b"file-%d" % number


def create(fs: Filesystem, number: int) -> None:
    """Create a file after a lookup of its name, as the kernel does."""
    assert fs.lookup(ROOT_INO, name_of(number)) is None
    make_file(fs, name_of(number))


def find(fs: Filesystem, number: int) -> None:
    """Look up a name in a directory."""
    look(fs, name_of(number))


def set_times(fs: Filesystem, number: int) -> None:
    """Look up a name, and set the times of its inode."""
    ino = look(fs, name_of(number)).ino
    fs.attributes.set_attributes(ino, SetAttributes(ctime_ns=T0 + 5))


def rename(fs: Filesystem, number: int) -> None:
    """Rename an entry within its directory."""
    fs.namespace.rename(ROOT_INO, name_of(number), ROOT_INO, b"new-%d" % number)


def unlink(fs: Filesystem, number: int) -> None:
    """Remove the only name of a file that no process has open."""
    fs.namespace.unlink(ROOT_INO, b"new-%d" % number)


# Each operation, with the maximum number of SQL statements that it executes.
# The session extension of SQLite records changes with one statement for each row that it reads.
STEPS: list[tuple[Callable[[Filesystem, int], None], int]] = [
    (create, 5),  # Creation takes one lookup, two inserts and two session statements.
    (find, 1),
    (set_times, 3),  # New times take one lookup, one update and one session statement.
    (rename, 7),  # Rename takes two lookups, two updates and three session statements.
    (unlink, 5),  # Removal takes one lookup, two deletes and two session statements.
]
# A commit group also writes a directory and the counters, reads the schema, and commits.
OF_A_GROUP = 25


async def test_operations_execute_at_most_a_fixed_number_of_sql_statements(
    volume: Volume, fs: Filesystem
) -> None:
    """In a commit group each inode is written only once, even the common directory of all files."""
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


@pytest.mark.parametrize("is_synced", [False, True], ids=["new block", "synced block"])
async def test_sequential_write_into_a_sparse_file_executes_at_most_two_sql_statements(
    volume: Volume, fs: Filesystem, *, is_synced: bool
) -> None:
    """The two statements look up the block and change its length."""
    ino, data = make_file(fs, b"sparse"), b"x" * 100
    await fs.data.truncate(ino, BLOCK_BYTES)
    await fs.write(ino, 0, data)
    if is_synced:
        volume.commit()
        await volume.session.cache.block_sync.sync_files()
    await fs.write(ino, len(data), data)
    with counting(volume) as counted:
        for number in range(2, COUNT):
            await fs.write(ino, number * len(data), data)
    assert counted.count <= 2 * COUNT + OF_A_GROUP


@pytest.mark.parametrize(("is_uploaded", "most"), [(False, 10.5), (True, 13.5)])
async def test_removal_of_a_small_file_executes_at_most_a_fixed_number_of_sql_statements(
    volume: Volume, fs: Filesystem, is_uploaded: bool, most: float
) -> None:
    for number in range(COUNT):
        ino = make_file(fs, name_of(number))
        await fs.write(ino, 0, b"content of %d" % number)
    if is_uploaded:
        await volume.session.flush()
        await volume.session.durability.sync_all()
    with counting(volume) as counted:
        for number in range(COUNT):
            fs.namespace.unlink(ROOT_INO, name_of(number))
    assert counted.count <= most * COUNT, counted.count / COUNT
    assert volume.session.db.counters.inodes == 1


async def test_read_of_cached_attributes_executes_no_sql_statement(
    volume: Volume, fs: Filesystem
) -> None:
    """Attributes of a file and of its directory are cached after the first read."""
    ino = make_file(fs, b"f")
    with counting(volume) as counted:
        for _ in range(COUNT):
            fs.getattr(ino)
            fs.getattr(ROOT_INO)
    assert counted.count <= 5  # The commit group ends with a few SQL statements.


async def test_upload_of_a_small_file_executes_at_most_a_fixed_number_of_sql_statements(
    volume: Volume, fs: Filesystem
) -> None:
    """An upload reads a block's row, searches for equal blocks, and sets its state three times."""
    for number in range(COUNT):
        ino = make_file(fs, name_of(number))
        await fs.write(ino, 0, b"content of %d" % number)
    with counting(volume) as counted:
        await volume.session.flush()
    assert counted.count <= 11.5 * COUNT, counted.count / COUNT
