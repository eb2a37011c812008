"""The check that each page of a database file belongs to at most one table or index."""

import struct
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.offline.page_trees import PageTrees, require_schema_tree
from s3fs_meta.meta.offline.restored_schema import require_ours
from s3fs_meta.meta.offline.salvage import DamagedDatabase

KEY = "image/1/manifest"
FACTS = {"uuid": b"u", "block_bytes": b"1048576", "cookie_key": bytes(16)}
# Offset of the last child's page number in the header of the first page.
_LAST_CHILD_AT = 108
_FIRST_CELL_AT = 112


@pytest.fixture(params=[512, 4096, 65536])
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the database of an image with a few thousand rows."""
    path = tmp_path / "image.db"
    made = Database.create(path, Pragmas(journal_mode="delete", page_size=request.param), FACTS)
    made.begin()
    rows = [(number, b"name %d" % number, bytes(50)) for number in range(2, 4000)]
    made.run_many("INSERT INTO xattrs VALUES (?, ?, ?)", rows)
    made.commit()
    made.close()
    image_copy.finish(path, (), ())
    return path


def root_of(path: Path, table: str) -> tuple[int, int]:
    """Return the page size and the number of the root page of a table."""
    connection = apsw.Connection(str(path))
    sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?"
    [[root]] = connection.execute(sql, (table,)).fetchall()
    page_bytes = connection.pragma("page_size")
    connection.close()
    assert isinstance(page_bytes, int)
    assert isinstance(root, int)
    return page_bytes, root


def put(path: Path, at: int, number: int) -> None:
    """Write a page number at an offset of the file."""
    data = bytearray(path.read_bytes())
    data[at : at + 4] = struct.pack(">I", number)
    path.write_bytes(data)


def test_check_of_page_trees_accepts_an_intact_image(image: Path) -> None:
    """A valid image with interior pages of tables and indexes passes with every page size."""
    before = image.read_bytes()

    require_ours(image, KEY)

    assert image.read_bytes() == before


def test_database_page_that_refers_to_itself_is_refused(image: Path) -> None:
    """A page that refers to itself would keep SQLite busy forever."""
    page_bytes, root = root_of(image, "xattrs")
    put(image, (root - 1) * page_bytes + 8, root)

    with pytest.raises(FormatError, match=f"{KEY}.*two pages of the file refer to page {root}"):
        require_ours(image, KEY)
    require_ours(image, KEY, authentic=True)


def test_database_page_that_belongs_to_two_tables_is_refused(image: Path) -> None:
    page_bytes, root = root_of(image, "xattrs")
    _, other = root_of(image, "symlinks")
    put(image, (root - 1) * page_bytes + 8, other)

    with pytest.raises(FormatError, match=f"two pages of the file refer to page {other}"):
        require_ours(image, KEY)


# With the page size 65536, the schema fits into one page, so it cannot refer to a page twice.
@pytest.mark.parametrize("image", [512, 4096], indirect=True)
@pytest.mark.parametrize(
    "use", [require_ours, DamagedDatabase, require_schema_tree], ids=lambda use: use.__name__
)
def test_schema_with_a_repeated_page_is_refused(
    image: Path, use: Callable[[Path, str], object]
) -> None:
    """A schema that refers to one page many times would take very long to read."""
    data = image.read_bytes()
    [cell] = struct.unpack_from(">H", data, _FIRST_CELL_AT)
    [child] = struct.unpack_from(">I", data, cell)
    put(image, _LAST_CHILD_AT, child)

    with pytest.raises(FormatError, match=f"two pages of the file refer to page {child}"):
        use(image, KEY)


@pytest.mark.parametrize("image", [512], indirect=True)
@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (_LAST_CHILD_AT, b"\xff\xff\xff\xff", "refers to page 4294967295"),
        (_LAST_CHILD_AT, b"\0\0\0\0", "refers to page 0"),
        (103, b"\xff\xff", "65535 cells"),
        (_FIRST_CELL_AT, b"\xff\xff", "a cell at byte 65535"),
        (100, b"\0", "page 1 of the file is not a B-tree page"),
        (16, b"\0\7", "invalid page size: 7"),
        (0, b"?", "does not begin with the header of an SQLite database"),
    ],
)
def test_database_with_an_impossible_first_page_is_refused(
    image: Path, at: int, value: bytes, why: str
) -> None:
    """The first page contains the header of the file and the root page of the schema."""
    data = image.read_bytes()
    image.write_bytes(data[:at] + value + data[at + len(value) :])

    with pytest.raises(FormatError, match=why):
        require_schema_tree(image, KEY)


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0", b"SQLite format 3\0" + bytes(84)])
def test_database_file_with_an_incomplete_last_page_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "short.db"
    path.write_bytes(data)

    with pytest.raises(FormatError, match=KEY):
        PageTrees(path, KEY)
