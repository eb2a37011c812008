"""Tests of the generated reference pages of commands, options, exit statuses and errnos."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from contrib.docs import reference
from s3fs_meta.cli import completion
from s3fs_meta.options.option_table import OPTIONS

DOCS: Final = Path(__file__).parents[2] / "docs"


def test_committed_reference_pages_match_the_output_of_make_docs() -> None:
    assert reference.stale(DOCS / "reference") == []


def test_changed_or_missing_reference_pages_are_reported_as_stale(tmp_path: Path) -> None:
    """The check prints the difference between a stale page and its new text."""
    (tmp_path / "settings.md").write_text(reference.settings_page().replace("wal", "whale", 1))

    found = "\n".join(reference.stale(tmp_path))

    assert "whale" in found
    assert "exit-codes.md" in found


def test_tuning_guide_mentions_every_sqlite_option() -> None:
    guide = (DOCS / "guide" / "tuning.md").read_text()
    first = [option.word for option in OPTIONS]
    sqlite = first[: first.index("temp_store") + 1]

    assert [word for word in sqlite if word not in guide] == []


@pytest.mark.slow
def test_each_shell_has_a_completion_script() -> None:
    """Each shell's completion script contains the program name and the completion variable."""
    found = reference.completion_scripts()

    assert set(found) == {"s3fs-meta", "_s3fs-meta", "s3fs-meta.fish"}
    assert all(completion.VARIABLE in script for script in found.values())


# Stand-ins for the completion system, which needs a terminal, and for the program.
_ZSH: Final = """
autoload -U _s3fs-meta
compdef() { print "defined $2" }
env() { print 'print "completed $words[CURRENT]"' }
words=(s3fs-meta mo) CURRENT=2
_s3fs-meta
_s3fs-meta
source {folder}/_s3fs-meta
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_at_the_first_use_of_the_completion_script(tmp_path: Path) -> None:
    """zsh loads the script when it first completes the command.

    A sourced script only registers itself.
    """
    (tmp_path / "_s3fs-meta").write_text(reference.completion_scripts()["_s3fs-meta"])
    code = f"fpath=({tmp_path})" + _ZSH.replace("{folder}", str(tmp_path))

    done = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=False)

    assert (done.stderr, done.stdout.splitlines()) == (
        "",
        ["completed mo", "completed mo", "defined s3fs-meta"],
    )
