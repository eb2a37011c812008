"""Generated pages."""

from pathlib import Path

import pytest

from contrib.docs import reference


def test_fresh_pages_are_not_stale(tmp_path: Path) -> None:
    """Writing and checking use the same text."""
    for name, make in reference.PAGES.items():
        (tmp_path / name).write_text(make())

    assert reference.stale(tmp_path) == []


def test_changed_and_missing_pages_are_stale(tmp_path: Path) -> None:
    """A stale page is reported with the difference."""
    (tmp_path / "settings.md").write_text(reference.settings_page().replace("wal", "whale", 1))

    found = "\n".join(reference.stale(tmp_path))

    assert "whale" in found
    assert "exit-codes.md" in found


@pytest.mark.slow
def test_each_shell_has_a_script() -> None:
    """The completion script names the program and the variable that triggers completion."""
    found = reference.completion_scripts()

    assert set(found) == {"s3fs-meta", "_s3fs-meta", "s3fs-meta.fish"}
    assert all(reference.COMPLETION_VARIABLE in script for script in found.values())
