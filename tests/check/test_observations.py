"""Tests of the temporary tables that contain the results of a survey."""

from pathlib import Path

from s3fs_meta.check.observations import Evidence, SeenLocation
from s3fs_meta.model import BlockId
from tests.check.healthy import Healthy


def test_object_key_is_counted_once_if_a_listing_repeats_it(healthy: Healthy) -> None:
    """A listing may repeat a key at the border of two pages; the last listed size is used."""
    evidence = Evidence(healthy.db)
    evidence.note_objects([("a", 1), ("b", 2), ("a", 3)])
    rows = healthy.db.all("SELECT * FROM temp.seen_objects ORDER BY object_key")
    assert rows == [("a", 3), ("b", 2)]


def test_new_fsck_run_deletes_the_observations_of_earlier_runs(healthy: Healthy) -> None:
    first = Evidence(healthy.db)
    first.note_files([(BlockId(1), 10)])
    first.note_strays([Path("/x")])
    first.note_unmapped("SELECT 1")
    first.note_foreign(["k"])
    first.note_unnamed(["k"])
    first.note_image_faults([("k", "gone")])
    first.note_locations([SeenLocation(BlockId(1), "k", 9, b"h", 1, 0, 1)])
    first.forget_locations("k", [BlockId(2)])
    first.note_searched("SELECT 1")
    first.note_packs(mounted=False)
    first.note_unreadable([(BlockId(1), "torn")])
    first.note_bad_indexes([(1, "torn")])
    first.note_damage("SELECT 1, -1")
    first.note_damaged_records(1, [0])
    first.note_false_marks(["damaged/1"])
    first.note_intact_copies([BlockId(1)])
    first.note_chain_faults([("k", 0, "gone")])
    first.note_index_faults([("k", "torn")])
    first.note_kept_faults([("k", "a name", "torn")])

    Evidence(healthy.db)

    tables = healthy.db.all("SELECT name FROM temp.sqlite_schema WHERE name LIKE 'seen%'")
    assert len(tables) == 19
    assert [healthy.db.all(f"SELECT * FROM temp.{name}") for (name,) in tables] == [[]] * 19


def test_fsck_observations_are_not_stored_in_the_database_file(healthy: Healthy) -> None:
    """Observations of fsck are rows of temporary tables."""
    Evidence(healthy.db).note_files([(BlockId(1), 10)])
    assert healthy.db.all("SELECT name FROM sqlite_schema WHERE name LIKE 'seen%'") == []
    assert healthy.check().lines() == ["clean"]


def test_fsck_records_an_unreadable_block_location_only_once(healthy: Healthy) -> None:
    """A pack index may list a location that an earlier read has found unreadable."""
    evidence = Evidence(healthy.db)
    location = SeenLocation(BlockId(1), "k", 9, b"h", 1, 0, 1)
    evidence.note_locations([location])
    evidence.forget_locations("k", [BlockId(1)])
    evidence.note_locations([location, location._replace(block=BlockId(2))])
    assert healthy.db.all("SELECT block FROM temp.seen_locations") == [(2,)]
    evidence.note_locations([location._replace(object_key="other")])
    assert len(healthy.db.all("SELECT block FROM temp.seen_locations")) == 2
