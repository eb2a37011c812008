"""The commands of the guides run and print what the pages promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"

# The commands find the program, and keep local state in a directory of the test.
_PRELUDE = """
set -eu
function s3fs-meta() {
    case "$*" in
        *--cachedir*) "$PYTHON" -m s3fs_meta "$@" ;;
        *) "$PYTHON" -m s3fs_meta "$@" --cachedir "$PWD/state" ;;
    esac
}
trap 'for each in */; do mountpoint -q "$each" && fusermount3 -uz "$each"; done; true' EXIT
"""


def run_page(name: str, directory: Path) -> str:
    """Run all blocks of commands of a page in one shell; return the output."""
    blocks = re.findall(r"```sh\n(.*?)```", (GUIDE / name).read_text(), re.DOTALL)
    done = subprocess.run(
        ["bash", "-c", _PRELUDE + "\n".join(blocks)],
        cwd=directory,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.mount
def test_commands_of_the_page_on_followers_run(tmp_path: Path) -> None:
    printed = run_page("followers.md", tmp_path)

    assert "Dear reader," in printed
    assert "following" in printed
    assert "draft" in printed


@pytest.mark.mount
def test_commands_of_the_page_on_failover_run(tmp_path: Path) -> None:
    printed = run_page("failover.md", tmp_path)

    assert "refused with status 7" in printed
    assert "in epoch 2" in printed
    assert "in the bucket\nwritten after it\nand back\n" in printed


@pytest.mark.mount
def test_commands_of_the_page_on_time_travel_run(tmp_path: Path) -> None:
    """The page finds a txg, mounts it, copies from it, rolls back to it, and undoes that."""
    printed = run_page("time-travel.md", tmp_path)

    assert printed.count("Chapter one") == 2
    assert "to undo it: s3fs-meta rollback --at txg=" in printed
    assert "\nthesis\n" in printed
    assert printed.endswith("shopping list\n")


@pytest.mark.mount
def test_commands_of_the_page_on_retention_run(tmp_path: Path) -> None:
    """The page shows and changes the retention, and drops the history to free its space."""
    printed = run_page("retention.md", tmp_path)

    before_kib, after_kib = (
        int(found) for found in re.findall(r"^(\d+)\tstore$", printed, re.MULTILINE)
    )
    assert "30d\n12h\n" in printed
    assert printed.endswith(f"7d\n{after_kib}\tstore\n")
    assert before_kib - after_kib > 2000


@pytest.mark.mount
def test_commands_of_the_page_on_restores_run(tmp_path: Path) -> None:
    """The page restores everything, and some files, on another host."""
    printed = run_page("restore.md", tmp_path)

    assert printed.count("Dear reader,") == 1
    assert "copied 2 files" in printed
    assert "a picture" in printed
    assert "again\nfirst\n" in printed
    assert (tmp_path / "some/letters/first").samefile(tmp_path / "some/letters/again")


@pytest.mark.mount
def test_commands_of_the_page_on_trees_run(tmp_path: Path) -> None:
    """The page removes a tree, and the target of a symlink in it remains."""
    printed = run_page("trees.md", tmp_path)

    assert "copy\nkept\nmoment\nsomething\n" in printed
