"""Telling boots of the machine apart."""

from pathlib import Path

import pytest

from s3fs_meta import boot


def test_boot_has_a_number_that_stays() -> None:
    """Without the line's end, so that it can stand in a row."""
    assert boot.this_boot() == boot.this_boot() == boot.this_boot().strip() != ""


def test_another_boot_has_another_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is read each time, from the file that tests put in its place."""
    monkeypatch.setattr(boot, "ID_FILE", tmp_path / "boot_id")
    boot.ID_FILE.write_text("another\n")

    assert boot.this_boot() == "another"
