"""The extended attribute that lists lost byte ranges of a file."""

import pytest

from s3fs_meta.limits import XATTR_VALUE_BYTES_MAX
from s3fs_meta.meta import lost_ranges
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.lost_ranges import ATTRIBUTE, MORE, LostPart
from s3fs_meta.meta.tables import inodes, xattrs
from s3fs_meta.model import BlockIndex, Ino


def test_formatted_lost_ranges_are_parsed_unchanged() -> None:
    ranges = [range(5), range(7, 8), range(1 << 40, (1 << 40) + 3)]
    assert lost_ranges.lines(ranges) == b"0-4\n7-7\n1099511627776-1099511627778\n"
    assert lost_ranges.parse(lost_ranges.lines(ranges)) == ranges


def test_omitted_lost_ranges_cover_the_rest_of_the_file() -> None:
    assert lost_ranges.parse(b"3-4\n" + MORE) == [range(3, 5), range(5, 1 << 63)]
    assert lost_ranges.parse(MORE) == [range(1 << 63)]


def test_encoded_ranges_are_sorted_and_merged() -> None:
    ranges = [range(20, 30), range(5), range(5, 7), range(25, 40)]
    assert lost_ranges.encoded(ranges) == b"0-6\n20-39\n"
    assert lost_ranges.encoded([]) == b""


def test_ranges_after_omitted_ranges_are_covered_by_the_last_line() -> None:
    """The line MORE covers the rest of the file after the range in the line before it."""
    known = lost_ranges.parse(b"3-4\n" + MORE)
    value = lost_ranges.encoded([*known, range(9, 12), range(1)])
    assert value == b"0-0\n3-3\n" + MORE
    assert lost_ranges.parse(value)[-1] == range(4, 1 << 63)


def test_encoded_ranges_that_do_not_fit_cover_all_omitted_ranges() -> None:
    ranges = [range(2 * one, 2 * one + 1) for one in range(30_000, 0, -1)]
    value = lost_ranges.encoded(ranges)
    assert len(value) <= XATTR_VALUE_BYTES_MAX
    assert value.endswith(b"\n" + MORE)
    found = lost_ranges.parse(value)
    assert all(any(one[0] in each for each in found[-2:]) for one in ranges[: 30_000 - len(found)])


@pytest.mark.parametrize(
    "line",
    [b"", b"-", b"1", b"1-", b"-1", b"2-1", b"a-b", b" 1-2", b"1-2-3", b"0-9223372036854775808"],
)
def test_invalid_lines_of_lost_ranges_are_ignored(line: bytes) -> None:
    """Programs can set the attribute of lost ranges to any value, so invalid lines are ignored."""
    assert lost_ranges.parse(b"0-1\n" + line + b"\n5-6\n") == [range(2), range(5, 7)]


def test_attribute_with_too_many_lost_ranges_is_truncated() -> None:
    assert len(lost_ranges.parse(b"0-1\n" * XATTR_VALUE_BYTES_MAX)) == XATTR_VALUE_BYTES_MAX // 4


def test_intact_ranges_are_removed_from_the_list_of_lost_ranges() -> None:
    ranges = [range(10), range(20, 30), range(40, 50)]
    assert lost_ranges.without(ranges, [range(5, 25), range(44, 46)]) == [
        range(5),
        range(25, 30),
        range(40, 44),
        range(46, 50),
    ]
    assert lost_ranges.without(ranges, [range(60)]) == []


def test_lost_ranges_are_extended_to_complete_blocks(db: Database) -> None:
    size = 65_536
    ino = inodes.create(db, 0o100644, 0, 0, Ino(1), 0).ino
    xattrs.set(
        db, ino, ATTRIBUTE, lost_ranges.lines([range(size), range(3 * size + 1, 5 * size + 1)])
    )
    xattrs.set(db, ino, b"user.other", b"0-1\n")

    assert list(lost_ranges.iterate(db)) == [
        LostPart(ino, BlockIndex(0), BlockIndex(0)),
        LostPart(ino, BlockIndex(3), BlockIndex(5)),
    ]


def test_blocks_of_overlapping_lost_ranges_are_listed_once(db: Database) -> None:
    """Programs can write thousands of equal ranges, which must not multiply the work of a mount."""
    size = 65_536
    ino = inodes.create(db, 0o100644, 0, 0, Ino(1), 0).ino
    last = 3 * size - 1
    value = b"%d-%d\n" % (2 * size, 9 * size) + b"0-%d\n" % last * 100 + MORE + MORE
    xattrs.set(db, ino, ATTRIBUTE, value)

    found = list(lost_ranges.iterate(db))

    assert [one.first for one in found] == [0, 3, 10]
    assert [one.last for one in found[:2]] == [2, 9]
