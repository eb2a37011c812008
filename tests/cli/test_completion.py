"""Completion scripts."""

import pytest

from s3fs_meta.cli import completion


@pytest.mark.slow
def test_each_shell_gets_a_script_for_the_program() -> None:
    """Each names the program and the variable that makes it answer."""
    found = completion.scripts()

    assert set(found) == {"s3fs-meta", "_s3fs-meta", "s3fs-meta.fish"}
    assert all(completion.VARIABLE in script for script in found.values())
