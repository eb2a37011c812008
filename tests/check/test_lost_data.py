"""Tests of the extended attribute that lists the lost ranges of a file."""

import pytest

from s3fs_meta.check.context import Examination
from s3fs_meta.check.lost_data import record
from s3fs_meta.check.observations import Evidence
from s3fs_meta.check.report import Report
from s3fs_meta.limits import XATTR_VALUE_BYTES_MAX
from s3fs_meta.meta.lost_ranges import ATTRIBUTE
from s3fs_meta.meta.tables import inodes, xattrs
from tests.check.healthy import BLOCK_BYTES, NOW_NS, Healthy


def _examination(healthy: Healthy) -> Examination:
    exam = Examination(healthy.db, Evidence(healthy.db), Report(), now_ns=NOW_NS, mounted=False)
    healthy.db.begin()
    return exam


def _range(first: int, blocks: int = 1) -> bytes:
    return b"%d-%d\n" % (first * BLOCK_BYTES, (first + blocks) * BLOCK_BYTES - 1)


def test_adjacent_lost_blocks_are_listed_as_one_range(healthy: Healthy) -> None:
    """If blocks 0, 1 and 3 are lost, blocks 0 and 1 form one range, and block 3 another.

    The last range ends at the end of the file.
    """
    exam = _examination(healthy)
    everything = f"SELECT ino, block_index, 0 FROM block_map WHERE ino = {healthy.uploaded}"
    record(exam, everything)
    value = xattrs.get(healthy.db, healthy.uploaded, ATTRIBUTE)
    size_bytes = inodes.get(healthy.db, healthy.uploaded).size_bytes
    assert value == _range(0, 2) + b"%d-%d\n" % (3 * BLOCK_BYTES, size_bytes - 1)
    assert healthy.db.all(everything) == []
    assert "3 blocks" in exam.report.notes[0]


def test_new_lost_ranges_are_merged_with_the_recorded_lost_ranges(healthy: Healthy) -> None:
    """When more content is lost, the attribute keeps the ranges of earlier losses."""
    exam = _examination(healthy)
    for index in (0, 1):
        record(exam, f"SELECT {healthy.uploaded}, {index}, 0")
    assert xattrs.get(healthy.db, healthy.uploaded, ATTRIBUTE) == _range(0, 2)


@pytest.mark.parametrize("index", [0, 3])
def test_lost_range_is_complete_if_the_size_of_the_file_is_wrong(
    healthy: Healthy, index: int
) -> None:
    """The size may be too small, and a later repair may extend the file."""
    exam = _examination(healthy)
    exam.run("UPDATE inodes SET size_bytes = 10 WHERE ino = ?", (healthy.uploaded,))
    record(exam, f"SELECT {healthy.uploaded}, {index}, 0")
    assert xattrs.get(healthy.db, healthy.uploaded, ATTRIBUTE) == _range(index)


def test_lost_range_begins_at_the_first_lost_byte_of_a_block(healthy: Healthy) -> None:
    """A file keeps the bytes of a block that precede its lost range."""
    exam = _examination(healthy)
    record(exam, f"SELECT {healthy.dirty}, 1, 700")
    value = xattrs.get(healthy.db, healthy.dirty, ATTRIBUTE)
    assert value == b"%d-%d\n" % (BLOCK_BYTES + 700, BLOCK_BYTES + 2000)
    assert healthy.block_of(healthy.dirty, 1)


def test_long_list_of_lost_ranges_is_truncated(healthy: Healthy) -> None:
    """The list of lost ranges is cut at the maximum size of an attribute value."""
    exam = _examination(healthy)
    record(
        exam,
        "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 2 FROM n WHERE i < 20000)"
        f" SELECT {healthy.dirty}, i, 0 FROM n",
    )
    value = xattrs.get(healthy.db, healthy.dirty, ATTRIBUTE)
    assert len(value) <= XATTR_VALUE_BYTES_MAX
    assert value.startswith(_range(0) + _range(2))
    assert value.endswith(b"\nmore\n")
