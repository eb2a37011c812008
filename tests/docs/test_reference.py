"""The generator of the reference pages."""

from pathlib import Path

import pytest

from contrib.docs import reference
from s3fs_meta.cli import completion


def test_new_reference_pages_are_not_reported_as_stale(tmp_path: Path) -> None:
    """A check directly after writing the pages reports no stale page."""
    for name, make in reference.PAGES.items():
        (tmp_path / name).write_text(make())

    assert reference.stale(tmp_path) == []


def test_changed_or_missing_reference_pages_are_reported_as_stale(tmp_path: Path) -> None:
    """The check prints the difference between a stale page and its new text."""
    (tmp_path / "settings.md").write_text(reference.settings_page().replace("wal", "whale", 1))

    found = "\n".join(reference.stale(tmp_path))

    assert "whale" in found
    assert "exit-codes.md" in found


@pytest.mark.slow
def test_each_shell_has_a_completion_script() -> None:
    """Each shell's completion script contains the program name and the completion variable."""
    found = reference.completion_scripts()

    assert set(found) == {"s3fs-meta", "_s3fs-meta", "s3fs-meta.fish"}
    assert all(completion.VARIABLE in script for script in found.values())
