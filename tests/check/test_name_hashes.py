"""Tests of fsck's check that every name is stored at the position of its hash."""

from pathlib import Path

import pytest

from s3fs_meta.check.name_hashes import NameHashes, any_misplaced
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import JOURNAL_MODES, Pragmas
from s3fs_meta.model import ROOT_INO
from tests.check.healthy import PROPERTIES, Healthy


@pytest.mark.parametrize("journal_mode", JOURNAL_MODES)
def test_names_at_wrong_directory_positions_are_found_in_every_journal_mode(
    tmp_path: Path, journal_mode: str
) -> None:
    """Name hashes are checked even if no second connection can read the database."""
    pragmas = Pragmas(journal_mode=journal_mode, synchronous="off")
    db = Database.create(tmp_path / "meta.db", pragmas, PROPERTIES)
    for cookie, misplaced in ((db.name_hash(b"a") << 8, False), (512, True)):
        db.begin()
        db.run("DELETE FROM dentries")
        db.run("INSERT INTO dentries VALUES (?, ?, ?, 2)", (ROOT_INO, cookie, b"a"))
        db.commit()
        hashes = NameHashes(db, beside=True)
        assert hashes.any_misplaced() == misplaced
        hashes.close()
    db.close()


def test_check_of_name_hashes_can_be_closed_without_a_result(healthy: Healthy) -> None:
    """Closing the check interrupts its thread, which may not have read all names."""
    for _ in range(5):
        NameHashes(healthy.db, beside=True).close()
    assert not any_misplaced(healthy.db)


def test_check_of_name_hashes_skips_names_that_are_not_bytes(healthy: Healthy) -> None:
    """Names that are stored as text violate another invariant, which reports them."""
    healthy.sql("UPDATE dentries SET name = 'text' WHERE ino = ?", healthy.fifo)
    assert not any_misplaced(healthy.db)
