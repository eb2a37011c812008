"""Tests of the records of open inodes."""

from s3fs_meta.fs.open_files import OpenFiles
from s3fs_meta.model import Ino


def test_record_of_an_open_inode_is_kept_until_the_last_release() -> None:
    """Two opens of an inode share one record. The second release removes the record."""
    files = OpenFiles()
    first = files.opened(Ino(3))
    assert files.opened(Ino(3)) is first
    assert files.closed(Ino(3)) == 1
    assert files.find(Ino(3)) is first
    assert files.closed(Ino(3)) == 0
    assert files.find(Ino(3)) is None
    assert len(files) == 0


def test_release_of_an_unopened_file_changes_nothing() -> None:
    assert OpenFiles().closed(Ino(3)) == 0


def test_open_inodes_in_a_range_are_found() -> None:
    """A search in a range includes the first and the last inode number of the range."""
    files = OpenFiles()
    files.opened(Ino(7))

    assert files.any_between(Ino(7), Ino(7))
    assert files.any_between(Ino(1), Ino(9))
    assert not files.any_between(Ino(8), Ino(9))


def test_file_that_is_read_without_an_open_request_counts_as_open() -> None:
    """If the kernel does not report opens, a file is treated as open from its first read.

    The file stays open until the kernel forgets it.
    """
    files = OpenFiles()
    assert files.being_read(Ino(3)) is None
    opened = files.opened(Ino(4))
    assert files.being_read(Ino(4)) is opened
    files.forgotten(Ino(4))
    assert files.find(Ino(4)) is opened

    files = OpenFiles()
    files.expect_reports(False)
    record = files.being_read(Ino(3))
    assert record is not None
    assert files.being_read(Ino(3)) is files.find(Ino(3)) is record
    files.forgotten(Ino(3))
    assert files.find(Ino(3)) is None


def test_time_of_the_first_open_for_writing_is_recorded() -> None:
    """The time of the first open is recorded until no process has the file open for writing."""
    files = OpenFiles()
    assert (files.writing, files.writing_since_s) == (0, None)
    files.opened(Ino(3))
    assert (files.writing, files.writing_since_s) == (0, None)
    for ino in (3, 3, 4):
        files.opened(Ino(ino), writes=True)
    since_s = files.writing_since_s
    assert files.writing == 2
    assert since_s is not None
    for ino in (3, 3, 3):
        files.closed(Ino(ino))
    assert (files.writing, files.writing_since_s) == (1, since_s)
    files.closed(Ino(4))
    assert (files.writing, files.writing_since_s) == (0, None)
