"""Tests of the state of an fsck run: queries for damaged rows, and totals of rows."""

from s3fs_meta.check.context import Examination, Invariant
from s3fs_meta.check.invariants import INVARIANTS
from s3fs_meta.check.observations import Evidence, Need
from s3fs_meta.check.report import Report
from tests.check.healthy import NOW_NS, Healthy


def _examination(healthy: Healthy, *, mounted: bool = False) -> Examination:
    return Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=mounted)


def test_totals_of_rows_are_computed_again_after_a_repair(healthy: Healthy) -> None:
    """After a repair, a query uses totals that were recomputed from the changed rows."""
    exam = _examination(healthy)
    assert exam.broken(INVARIANTS) == {}
    healthy.db.begin()
    exam.run("DELETE FROM dentries WHERE ino = ?", (healthy.fifo,))
    assert 26 in exam.broken(INVARIANTS)
    healthy.db.rollback()


def test_invariant_is_skipped_if_its_survey_did_not_run(healthy: Healthy) -> None:
    """Object checks need a listing of the bucket, and orphan checks an unmounted filesystem."""
    unmounted, mounted = _examination(healthy), _examination(healthy, mounted=True)
    names = {one.name for one in INVARIANTS if unmounted.can_judge(one)}
    assert not names & {"I4", "I43", "I44", "I45", "I46", "I47", "I48", "I49", "I50", "I51"}
    assert names - {one.name for one in INVARIANTS if mounted.can_judge(one)} == {"I28", "I69"}


def test_all_damaged_rows_are_listed_before_a_repair_changes_rows(healthy: Healthy) -> None:
    """A repair may delete rows while it reads the list of damaged rows."""
    exam = _examination(healthy)
    healthy.db.begin()
    seen = 0
    for (ino,) in exam.collected("SELECT ino FROM inodes WHERE ino > 1"):
        exam.run("DELETE FROM inodes WHERE ino >= ?", (ino,))
        seen += 1
    assert seen == len(healthy.before["inodes"]) - 1
    healthy.db.rollback()


def test_inodes_created_by_a_repair_have_the_owner_of_the_root_directory(healthy: Healthy) -> None:
    """Without a root directory, inodes created by a repair belong to user 0."""
    healthy.sql("UPDATE inodes SET uid = 7, gid = 8 WHERE ino = 1")
    assert _examination(healthy).owner() == (7, 8)
    healthy.sql("DELETE FROM inodes WHERE ino = 1")
    assert _examination(healthy).owner() == (0, 0)


def test_repairs_that_were_undone_do_not_count_as_changes(healthy: Healthy) -> None:
    exam = _examination(healthy)
    healthy.db.begin()
    exam.run("DELETE FROM dentries WHERE ino = ?", (healthy.fifo,))
    assert (exam.changed, exam.report.changes_rows) == (True, True)

    healthy.db.undo()
    exam.undone(())

    assert (exam.changed, exam.report.changes_rows, exam.report.is_undone) == (False, False, True)
    assert exam.broken(INVARIANTS) == {}


def test_query_of_an_invariant_is_built_from_a_source_and_a_condition() -> None:
    """An invariant counts and repairs damaged rows with the same source and condition."""
    one = Invariant(7, "t", source="inodes AS i", damaged="i.nlink < 0", columns="i.ino", text="")
    assert one.name == "I7"
    assert one.query == "SELECT i.ino FROM inodes AS i WHERE (i.nlink < 0)"
    assert one.select("i.mode") == "SELECT i.mode FROM inodes AS i WHERE (i.nlink < 0)"
    assert not one.uses_sums


def test_invariant_can_have_a_separate_query_that_lists_its_findings() -> None:
    one = Invariant(7, "t", source="s", damaged="d", columns="c", text="", listing="SELECT 1")
    assert one.query == "SELECT 1"


def test_set_of_surveys_contains_the_database_rows_and_each_completed_survey() -> None:
    """An invariant is checked only if the survey that it needs was completed."""
    surveyed = Need.FILES | Need.OBJECTS
    assert Need.ROWS in surveyed
    assert Need.FILES in surveyed
    assert Need.CONTENT not in surveyed


def test_every_invariant_has_a_query_and_a_text() -> None:
    for one in INVARIANTS:
        assert one.text
        assert bool(one.scan) != bool(one.source), one.name
