"""Tests of the temporary tables with totals of rows, which the queries of invariants use."""

from s3fs_meta.check import sums
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO
from tests.check.healthy import BLOCK_BYTES, Healthy


def _row(healthy: Healthy, sql: str) -> tuple[object, ...]:
    healthy.db.inodes.write_through()
    sums.make_tables(healthy.db)
    sums.fill_tables(healthy.db)
    row = healthy.db.one(sql)
    assert row is not None
    return row


def test_names_are_counted_per_inode_and_per_directory(healthy: Healthy) -> None:
    """A file with two names in one directory and one in another has three names."""
    ino, parent = healthy.linked, healthy.directory
    assert _row(healthy, f"SELECT * FROM temp.check_names WHERE ino = {ino}") == (
        ino,
        3,
        ROOT_INO,
        parent,
    )
    assert healthy.db.all(f"SELECT parent, names FROM temp.check_links WHERE ino = {ino}") == [
        (ROOT_INO, 1),
        (parent, 2),
    ]


def test_totals_contain_the_set_of_reachable_directories(healthy: Healthy) -> None:
    """The totals contain each directory's type and size; the root reaches all directories."""
    row = _row(healthy, f"SELECT * FROM temp.check_dirs WHERE ino = {healthy.directory}")
    size = inodes.get(healthy.db, healthy.directory).size_bytes
    assert row == (healthy.directory, sums.DIRECTORY, size, 1)
    reached = healthy.db.all("SELECT count(*) FROM temp.check_reached")
    directories = healthy.db.inodes.all("SELECT count(*) FROM inodes WHERE mode & 61440 = 16384")
    assert reached == directories


def test_totals_contain_the_number_of_blocks_and_the_end_of_each_file(healthy: Healthy) -> None:
    row = _row(healthy, f"SELECT * FROM temp.check_mapped WHERE ino = {healthy.uploaded}")
    assert row == (healthy.uploaded, 3, 0, 3, 3 * BLOCK_BYTES + 3003)


def test_temporary_tables_with_totals_are_dropped_after_an_fsck_run(healthy: Healthy) -> None:
    sums.make_tables(healthy.db)
    sums.drop_tables(healthy.db)
    assert healthy.db.all("SELECT name FROM temp.sqlite_schema WHERE name LIKE 'check%'") == []


def test_two_methods_of_computing_the_totals_give_equal_results(healthy: Healthy) -> None:
    """For large filesystems totals are computed by a sort, and for small ones by inserts."""
    sums.make_tables(healthy.db)
    for table, statements in (
        ("check_names", (sums.NAMES_AS_THEY_COME, sums.NAMES_SORTED)),
        ("check_refs", (sums.REFS_AS_THEY_COME, sums.REFS_SORTED)),
    ):
        results = []
        for statement in statements:
            healthy.db.all(f"DELETE FROM temp.{table}")
            healthy.db.all(statement)
            results.append(healthy.db.all(f"SELECT * FROM temp.{table} ORDER BY 1"))
        assert results[0] == results[1] != []
