"""Tests that the commands of docs/start/first-mount.md succeed."""

from pathlib import Path

import pytest

from tests.docs.pages import PAGE_S_MAX, ROOT, blocks_of, run_page

pytestmark = [pytest.mark.mount, pytest.mark.timeout(PAGE_S_MAX)]

PAGE = ROOT / "docs" / "start" / "first-mount.md"


def test_commands_of_the_first_mount_page_succeed(tmp_path: Path) -> None:
    assert len(blocks_of(PAGE)) >= 6

    printed = run_page(PAGE, tmp_path)

    assert "draft has 2 names" in printed
    assert "Dear reader," in printed
    assert ": clean" in printed
