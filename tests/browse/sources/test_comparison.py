"""Tests of the browse page that compares two versions of a text side by side."""

from pathlib import Path

import pytest

from s3fs_meta.browse.limits import BROWSE_LINES_MAX
from s3fs_meta.browse.sources import comparison
from s3fs_meta.browse.sources.comparison import Row
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, Ino
from tests.browse import points


async def test_text_comparison_places_lines_side_by_side() -> None:
    rows = await comparison.side_by_side("a\nb\nc\nd", "a\nB\nd\ne")
    assert rows == [
        Row("equal", 1, "a", 1, "a"),
        Row("changed", 2, "b", 2, "B"),
        Row("removed", 3, "c", None, ""),
        Row("equal", 4, "d", 3, "d"),
        Row("added", None, "", 4, "e"),
    ]


async def test_text_comparison_omits_equal_lines_far_from_changes() -> None:
    old = [str(number) for number in range(100)]
    rows = await comparison.side_by_side("\n".join(old), "\n".join(["x", *old[1:-1], "y"]))
    assert [row.kind for row in rows].count("skipped") == 1
    assert len(rows) < 12


async def test_text_comparison_is_limited_to_the_first_lines() -> None:
    old = "\n".join(map(str, range(BROWSE_LINES_MAX)))
    assert await comparison.side_by_side(old, old + "\nmore") == []
    assert comparison.omits_lines(old, old + "\nmore")
    assert not comparison.omits_lines(old, old.replace("1", "2"))


def test_long_texts_that_are_equal_need_no_download() -> None:
    """The texts themselves are compared, not only the lines that the page can show."""
    text = "line\n" * (BROWSE_LINES_MAX + 1)
    is_cut = comparison.omits_lines(text, text)
    assert comparison.without_rows(text, text, is_cut=is_cut) == "The versions are equal."


@pytest.mark.parametrize(
    ("new", "is_cut", "result"),
    [
        ("a\nb\n", False, "The versions are equal."),
        ("a\nb", False, "The versions differ only in the characters at the ends of lines."),
        ("a\r\nb\n", False, "The versions differ only in the characters at the ends of lines."),
        ("a\nb\n", True, "The beginnings are equal;"),
    ],
)
async def test_text_comparison_calls_only_equal_versions_equal(
    new: str, is_cut: bool, result: str
) -> None:
    assert await comparison.side_by_side("a\nb\n", new) == []
    assert comparison.without_rows("a\nb\n", new, is_cut=is_cut).startswith(result)


@pytest.mark.parametrize("most", [1, 2])
async def test_names_in_parent_directories_count_towards_the_tree_comparison_limit(
    tmp_path: Path, most: int
) -> None:
    """Finding a path reads all names of each parent directory."""
    db = points.made(tmp_path)
    folder = points.add(db, ROOT_INO, b"folder", points.FOLDER)
    file = points.add(db, folder, b"file")
    for ino in (ROOT_INO, folder):
        inodes.replace(db, inodes.get(db, ino)._replace(size_bytes=most))
    db.commit()
    point = points.point_of(db)
    assert await comparison.names_in(point, [file]) == 2 * most
    assert await comparison.names_in(point, [file, folder, ROOT_INO, Ino(999)]) == 2 * most
    db.close()
