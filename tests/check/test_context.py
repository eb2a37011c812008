"""The context of a check: counted and listed rows, and sums that a change invalidates."""

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.invariants import INVARIANTS
from s3fs_meta.check.observations import Evidence, Need
from s3fs_meta.check.report import Report
from tests.check.healthy import NOW_NS, Healthy


def _examination(healthy: Healthy, *, mounted: bool = False) -> Examination:
    return Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=mounted)


def test_sums_are_recomputed_after_a_change(healthy: Healthy) -> None:
    """A query after a repair computes its sums from the changed rows."""
    exam = _examination(healthy)
    assert exam.broken(INVARIANTS) == {}
    healthy.db.begin()
    exam.run("DELETE FROM dentries WHERE ino = ?", (healthy.fifo,))
    assert 26 in exam.broken(INVARIANTS)
    healthy.db.rollback()


def test_only_surveyed_parts_are_judged(healthy: Healthy) -> None:
    """Invariants about objects need a listing, those about orphans an unmounted filesystem."""
    unmounted, mounted = _examination(healthy), _examination(healthy, mounted=True)
    names = {one.name for one in INVARIANTS if unmounted.can_judge(one)}
    assert not names & {"I4", "I43", "I44", "I45", "I46", "I47", "I48", "I49", "I50", "I51"}
    assert names - {one.name for one in INVARIANTS if mounted.can_judge(one)} == {"I28", "I69"}


def test_rows_are_collected_before_they_are_changed(healthy: Healthy) -> None:
    """A repair may delete rows while it iterates over them."""
    exam = _examination(healthy)
    healthy.db.begin()
    seen = 0
    for (ino,) in exam.collected("SELECT ino FROM inodes WHERE ino > ?", (1,)):
        exam.run("DELETE FROM inodes WHERE ino >= ?", (ino,))
        seen += 1
    assert seen == len(healthy.before["inodes"]) - 1
    healthy.db.rollback()


def test_new_inodes_belong_to_the_owner_of_the_root(healthy: Healthy) -> None:
    """Inodes made by a repair belong to the owner of the root, or to user 0 without one."""
    healthy.sql("UPDATE inodes SET uid = 7, gid = 8 WHERE ino = 1")
    assert _examination(healthy).owner() == (7, 8)
    healthy.sql("DELETE FROM inodes WHERE ino = 1")
    assert _examination(healthy).owner() == (0, 0)


def test_invariant_query_consists_of_one_source_and_one_condition() -> None:
    """One FROM clause and one condition of an invariant serve for counting and for repairs."""
    one = Invariant(7, "t", source="inodes AS i", damaged="i.nlink < 0", columns="i.ino", text="")
    assert one.name == "I7"
    assert one.query == "SELECT i.ino FROM inodes AS i WHERE (i.nlink < 0)"
    assert one.select("i.mode") == "SELECT i.mode FROM inodes AS i WHERE (i.nlink < 0)"
    assert not one.uses_sums


def test_listing_of_an_invariant_replaces_its_query() -> None:
    """An invariant may have another query that lists the damaged files."""
    one = Invariant(7, "t", source="s", damaged="d", columns="c", text="", listing="SELECT 1")
    assert one.query == "SELECT 1"


def test_need_is_met_only_if_all_its_surveys_were_made() -> None:
    """A set of surveys contains a need only if that survey was made."""
    surveyed = Need.FILES | Need.OBJECTS
    assert Need.ROWS in surveyed
    assert Need.FILES in surveyed
    assert Need.CONTENT not in surveyed


def test_every_invariant_has_a_query_and_a_text() -> None:
    for one in INVARIANTS:
        assert one.text
        assert bool(one.scan) != bool(one.source), one.name
