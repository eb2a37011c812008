"""A database file that takes the place of another, and the way back."""

from pathlib import Path

import pytest

from s3fs_meta.meta.db.db_swap import Exchange


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a directory with a database, its log, another database, and a place for the first."""
    for name, content in (("meta.db", "old"), ("meta.db-wal", "log"), ("anew.db", "new")):
        (tmp_path / name).write_text(content)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def contents(home: Path) -> dict[str, str]:
    """Return all files by their names."""
    return {path.name: path.read_text() for path in home.rglob("*") if path.is_file()}


def test_the_other_comes_without_the_log_of_the_first(home: Path) -> None:
    """Which lies beside the first, elsewhere."""
    Exchange(home / "meta.db", home / "anew.db", home / "tmp").do()
    assert contents(home) == {"meta.db": "new", "gone.db": "old", "gone.db-wal": "log"}


def test_undone_it_is_as_before(home: Path) -> None:
    """Also if the other one has a log by then."""
    before = contents(home)
    files = Exchange(home / "meta.db", home / "anew.db", home / "tmp")
    files.do()
    (home / "meta.db-wal").write_text("the log of the other")
    (home / "meta.db-shm").write_text("its index")
    files.undo()
    assert contents(home) == before


@pytest.mark.parametrize("missing", ["anew.db", "tmp"])
def test_what_was_done_before_a_failure_is_undone(home: Path, missing: str) -> None:
    """The other one is gone, or there is no place for the first."""
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
