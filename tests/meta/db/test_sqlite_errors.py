"""From SQLite's errors to ours."""

import apsw
import pytest

from s3fs_meta.errors import DatabaseError, DatabaseFullError, FormatError
from s3fs_meta.meta.db.sqlite_errors import translated


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (apsw.FullError("f"), DatabaseFullError),
        (apsw.CorruptError("c"), FormatError),
        (apsw.NotADBError("n"), FormatError),
        (apsw.IOError("i"), DatabaseError),
        (apsw.BusyError("b"), DatabaseError),
        (apsw.Error(), DatabaseError),
    ],
)
def test_each_kind_has_its_error(theirs: apsw.Error, ours: type) -> None:
    """The most specific one wins; an unlisted one is never silence."""
    error = translated(theirs, "meta.db")
    assert type(error) is ours
    assert "meta.db" in str(error)
