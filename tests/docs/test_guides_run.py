"""The commands of the guides run and print what the pages promise."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGE_S_MAX, ROOT, blocks_of, run_page

pytestmark = [pytest.mark.mount, pytest.mark.timeout(PAGE_S_MAX)]

GUIDE = ROOT / "docs" / "guide"


def test_commands_of_the_page_on_followers_run(tmp_path: Path) -> None:
    printed = run_page(GUIDE / "followers.md", tmp_path)

    assert "Dear reader," in printed
    assert "following" in printed
    assert "draft" in printed


def test_commands_of_the_page_on_failover_run(tmp_path: Path) -> None:
    printed = run_page(GUIDE / "failover.md", tmp_path)

    assert "refused with status 7" in printed
    assert "in epoch 2" in printed
    assert "in the bucket\nwritten after it\nand back\n" in printed


def test_commands_of_the_page_on_time_travel_run(tmp_path: Path) -> None:
    """The page finds a txg, mounts it, copies from it, rolls back to it, and undoes that."""
    printed = run_page(GUIDE / "time-travel.md", tmp_path)

    assert printed.count("Chapter one") == 2
    assert "to undo it: s3fs-meta rollback --at txg=" in printed
    assert "\nthesis\n" in printed
    assert printed.endswith("shopping list\n")


def test_commands_of_the_page_on_retention_run(tmp_path: Path) -> None:
    """The page shows and changes the retention, and drops the history to free its space."""
    printed = run_page(GUIDE / "retention.md", tmp_path)

    before_kib, after_kib = (
        int(found) for found in re.findall(r"^(\d+)\tstore$", printed, re.MULTILINE)
    )
    assert "30d\n12h\n" in printed
    assert printed.endswith(f"7d\n{after_kib}\tstore\n")
    assert before_kib - after_kib > 2000


def test_commands_of_the_page_on_restores_run(tmp_path: Path) -> None:
    """The page restores everything, and some files, on another host."""
    printed = run_page(GUIDE / "restore.md", tmp_path)

    assert printed.count("Dear reader,") == 1
    assert "copied 2 files" in printed
    assert "a picture" in printed
    assert "again\nfirst\n" in printed
    assert (tmp_path / "some/letters/first").samefile(tmp_path / "some/letters/again")


def test_commands_of_the_page_on_trees_run(tmp_path: Path) -> None:
    """The page copies, locks and removes trees; its commands print what its comments promise."""
    page = GUIDE / "trees.md"
    promised = re.findall(r" # (.+)$", "\n".join(blocks_of(page)), re.MULTILINE)
    assert len(promised) == 3

    printed = run_page(page, tmp_path).splitlines()[1:]

    shown = [line for line in printed if not line.startswith("refused")]
    assert shown == ", ".join(promised).split(", ")
    assert printed.count("refused") == printed.count("refused again") == 1
