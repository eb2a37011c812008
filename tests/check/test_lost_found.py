"""Tests of the directory lost+found and of the names in it."""

import pytest

from s3fs_meta.check import lost_found
from s3fs_meta.check.context import Examination
from s3fs_meta.check.observations import Evidence
from s3fs_meta.check.report import Report
from s3fs_meta.errors import MetadataError
from s3fs_meta.limits import LOST_NAME_ATTEMPTS_MAX, NAME_BYTES_MAX
from s3fs_meta.meta.lost_names import LOST_FOUND
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO
from tests.check.healthy import NOW_NS, Healthy


@pytest.fixture
def exam(healthy: Healthy) -> Examination:
    """Return the state of an fsck run, with an open commit group."""
    made = Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=False)
    healthy.db.begin()
    return made


def test_lost_and_found_directory_is_created_only_once(healthy: Healthy, exam: Examination) -> None:
    home = lost_found.directory(exam)
    assert lost_found.directory(exam) == home
    assert dentries.find(healthy.db, ROOT_INO, LOST_FOUND) == home
    assert exam.report.notes == ["created directory /lost+found"]


def test_name_of_a_recovered_inode_is_the_inode_number(healthy: Healthy, exam: Examination) -> None:
    """In lost+found, the name of a recovered inode is "#" followed by its number."""
    home = lost_found.directory(exam)
    lost_found.place(exam, home, healthy.fifo)
    assert dentries.find(healthy.db, home, b"#%d" % healthy.fifo) == healthy.fifo


def test_name_of_a_recovered_inode_does_not_exceed_the_maximum_length(
    healthy: Healthy, exam: Examination
) -> None:
    """If a name of maximum length already exists, a number replaces the last bytes of the name."""
    wanted = b"n" * NAME_BYTES_MAX
    given = [
        lost_found.add_under_free_name(exam, healthy.inner, wanted, healthy.fifo) for _ in range(3)
    ]
    assert given == [wanted, wanted[:-2] + b"~1", wanted[:-2] + b"~2"]


def test_search_for_a_free_name_in_lost_and_found_is_bounded(
    healthy: Healthy, exam: Examination
) -> None:
    """The search for a free name raises MetadataError if all tried names exist."""
    dentries.add(healthy.db, healthy.inner, b"same", healthy.fifo)
    for number in range(1, LOST_NAME_ATTEMPTS_MAX):
        dentries.add(healthy.db, healthy.inner, b"same~%d" % number, healthy.fifo)
    with pytest.raises(MetadataError):
        lost_found.add_under_free_name(exam, healthy.inner, b"same", healthy.fifo)
