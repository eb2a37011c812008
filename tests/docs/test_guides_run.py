"""The commands of guides that say that they run as they stand do what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide"

# The commands find the program, and local state below the test's directory unless they say where.
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
    """Run every block of a page, in one shell, in order; return what it prints."""
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
def test_followers(tmp_path: Path) -> None:
    """A follower shows the writer's changes."""
    printed = run_page("followers.md", tmp_path)

    assert "Dear reader," in printed
    assert "following" in printed
    assert "draft" in printed


@pytest.mark.mount
def test_failover(tmp_path: Path) -> None:
    """A second mount is refused, then takes over; the old writer returns as a follower."""
    printed = run_page("failover.md", tmp_path)

    assert "refused with status 7" in printed
    assert "in epoch 2" in printed
    assert "in the bucket\nwritten after it\nand back\n" in printed


@pytest.mark.mount
def test_time_travel(tmp_path: Path) -> None:
    """A point in time is found, mounted, copied from and rolled back to; the rollback is undone."""
    printed = run_page("time-travel.md", tmp_path)

    assert printed.count("Chapter one") == 2
    assert "to undo it: s3fs-meta rollback --at txg=" in printed
    assert "\nthesis\n" in printed
    assert printed.endswith("shopping list\n")


@pytest.mark.mount
def test_retention(tmp_path: Path) -> None:
    """Retention is shown and changed; dropping the history frees its space."""
    printed = run_page("retention.md", tmp_path)

    before_kib, after_kib = (
        int(found) for found in re.findall(r"^(\d+)\tstore$", printed, re.MULTILINE)
    )
    assert "30d\n12h\n" in printed
    assert printed.endswith(f"7d\n{after_kib}\tstore\n")
    assert before_kib - after_kib > 2000


@pytest.mark.mount
def test_restore(tmp_path: Path) -> None:
    """Another host restores everything, or some files."""
    printed = run_page("restore.md", tmp_path)

    assert printed.count("Dear reader,") == 1
    assert "copied 2 files" in printed
    assert "a picture" in printed
    assert "again\nfirst\n" in printed
    assert (tmp_path / "some/letters/first").samefile(tmp_path / "some/letters/again")


@pytest.mark.mount
def test_trees(tmp_path: Path) -> None:
    """A removed tree is deleted; the target of a link in it stays."""
    printed = run_page("trees.md", tmp_path)

    assert "copy\nkept\nmoment\nsomething\n" in printed
