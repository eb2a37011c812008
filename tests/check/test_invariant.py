"""The form of an invariant."""

from s3fs_meta.check.invariant import Invariant, Need
from s3fs_meta.check.invariants import INVARIANTS


def test_query_is_put_together_from_its_parts() -> None:
    """One FROM clause and one condition serve counting, listing and repairing."""
    one = Invariant(7, "t", source="inodes AS i", damaged="i.nlink < 0", columns="i.ino", text="")
    assert one.name == "I7"
    assert one.query == "SELECT i.ino FROM inodes AS i WHERE i.nlink < 0"
    assert one.select("i.mode") == "SELECT i.mode FROM inodes AS i WHERE i.nlink < 0"
    assert not one.uses_sums


def test_listing_replaces_the_damaged_rows() -> None:
    """Where files are listed that a damaged row concerns."""
    one = Invariant(7, "t", source="s", damaged="d", columns="c", text="", listing="SELECT 1")
    assert one.query == "SELECT 1"


def test_needs_are_contained_in_what_was_surveyed() -> None:
    """An invariant is judged when all that it needs was looked at."""
    surveyed = Need.FILES | Need.OBJECTS
    assert Need.ROWS in surveyed
    assert Need.FILES in surveyed
    assert Need.CONTENT not in surveyed


def test_everything_can_be_found() -> None:
    """Each invariant has a query or a scan, and a text for what it finds."""
    for one in INVARIANTS:
        assert one.text
        assert bool(one.scan) != bool(one.source), one.name
