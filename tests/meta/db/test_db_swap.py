"""The database swap: one database file replaces another, and the swap can be undone."""

from pathlib import Path

import pytest

from s3fs_meta.meta.db.db_swap import Exchange


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a directory with a database, its WAL, a second database and an empty directory."""
    for name, content in (("meta.db", "old"), ("meta.db-wal", "log"), ("anew.db", "new")):
        (tmp_path / name).write_text(content)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def contents(home: Path) -> dict[str, str]:
    """Return the bytes of each file, by file name."""
    return {path.name: path.read_text() for path in home.rglob("*") if path.is_file()}


def test_wal_of_a_replaced_database_is_moved_together_with_the_database(home: Path) -> None:
    """The old database's WAL is moved away, because SQLite would apply it to the new database."""
    Exchange(home / "meta.db", home / "anew.db", home / "tmp").do()
    assert contents(home) == {"meta.db": "new", "gone.db": "old", "gone.db-wal": "log"}


def test_undo_of_a_database_swap_restores_the_original_database(home: Path) -> None:
    """The undo of a database swap works even if the new database has a WAL."""
    before = contents(home)
    files = Exchange(home / "meta.db", home / "anew.db", home / "tmp")
    files.do()
    (home / "meta.db-wal").write_text("the log of the other")
    (home / "meta.db-shm").write_text("its index")
    files.undo()
    assert contents(home) == before


@pytest.mark.parametrize("missing", ["anew.db", "tmp"])
def test_failed_database_swap_is_undone(home: Path, missing: str) -> None:
    """If one rename of a database swap fails, the earlier renames are undone."""
    gone = home / missing
    if gone.is_dir():
        gone.rmdir()
    else:
        gone.unlink()
    before = contents(home)
    files = Exchange(home / "meta.db", home / "anew.db", home / "tmp")
    with pytest.raises(FileNotFoundError):
        files.do()
    files.undo()
    assert contents(home) == before
