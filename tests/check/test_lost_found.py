"""Names in lost+found."""

import pytest

from s3fs_meta.check import lost_found
from s3fs_meta.check.context import Examination
from s3fs_meta.check.observations import Evidence
from s3fs_meta.check.report import Report
from s3fs_meta.errors import MetadataError
from s3fs_meta.limits import LOST_NAME_ATTEMPTS_MAX, NAME_BYTES_MAX
from s3fs_meta.meta.tables import dentries
from s3fs_meta.model import ROOT_INO
from tests.check.healthy import NOW_NS, Healthy


@pytest.fixture
def exam(healthy: Healthy) -> Examination:
    """Return a run with an open group."""
    made = Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=False)
    healthy.db.begin()
    return made


def test_lost_and_found_is_created_once(healthy: Healthy, exam: Examination) -> None:
    """lost+found belongs to the owner of the root, and no other user can list it."""
    home = lost_found.directory(exam)
    assert lost_found.directory(exam) == home
    assert dentries.find(healthy.db, ROOT_INO, lost_found.NAME) == home
    assert exam.report.notes == ["made directory /lost+found"]


def test_recovered_inode_is_named_by_its_number(healthy: Healthy, exam: Examination) -> None:
    """A recovered inode is named by its number, which is never reused."""
    home = lost_found.directory(exam)
    lost_found.place(exam, home, healthy.fifo)
    assert dentries.find(healthy.db, home, b"#%d" % healthy.fifo) == healthy.fifo


def test_longest_name_stays_within_its_bound(healthy: Healthy, exam: Examination) -> None:
    """A variant of a name is at most as long as the name."""
    wanted = b"n" * NAME_BYTES_MAX
    given = [
        lost_found.add_under_free_name(exam, healthy.inner, wanted, healthy.fifo) for _ in range(3)
    ]
    assert given == [wanted, wanted[:-2] + b"~1", wanted[:-2] + b"~2"]


def test_search_for_a_free_name_is_bounded(healthy: Healthy, exam: Examination) -> None:
    """After a bounded number of attempts the search raises an error."""
    dentries.add(healthy.db, healthy.inner, b"same", healthy.fifo)
    for number in range(1, LOST_NAME_ATTEMPTS_MAX):
        dentries.add(healthy.db, healthy.inner, b"same~%d" % number, healthy.fifo)
    with pytest.raises(MetadataError):
        lost_found.add_under_free_name(exam, healthy.inner, b"same", healthy.fifo)
