"""Generated pages."""

from pathlib import Path

from s3fs_meta.cli import reference


def test_fresh_pages_are_not_stale(tmp_path: Path) -> None:
    """Writing and checking agree."""
    for name, make in reference.PAGES.items():
        (tmp_path / name).write_text(make())

    assert reference.stale(tmp_path) == []


def test_changed_and_missing_pages_are_stale(tmp_path: Path) -> None:
    """The difference is shown."""
    (tmp_path / "settings.md").write_text(reference.settings_page().replace("wal", "whale", 1))

    found = "\n".join(reference.stale(tmp_path))

    assert "whale" in found
    assert "exit-codes.md" in found
