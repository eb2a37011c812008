"""Tests that the guide uses all screenshots, and that the screenshots can be made."""

import struct
from pathlib import Path

import pytest

from tests.browse import chromium, screenshots
from tests.browse.conftest import require_chromium
from tests.browse.screenshots import PICTURES
from tests.programs import ROOT

GUIDE = ROOT / "docs" / "guide"
BYTES_MAX = 150_000


def test_browse_guide_shows_every_screenshot() -> None:
    page = (GUIDE / "browse.md").read_text()
    assert {path.stem for path in (GUIDE / "browse").iterdir()} == {one.name for one in PICTURES}
    for one in PICTURES:
        assert f"](browse/{one.name}.png)" in page
        content = (GUIDE / "browse" / f"{one.name}.png").read_bytes()
        assert struct.unpack(">II", content[16:24]) == one.size
        assert len(content) < BYTES_MAX


@pytest.mark.slow
@pytest.mark.mount
def test_screenshots_of_the_browse_guide_can_be_made(tmp_path: Path) -> None:
    require_chromium()
    with screenshots.demo(tmp_path / "demo") as served, chromium.started() as browser:
        browser.log_in(served)
        for one in PICTURES:
            content = screenshots.take(browser, served, one)
            assert struct.unpack(">II", content[16:24]) == one.size
            assert browser.run("document.querySelector('h1').textContent") not in {"", "Not found"}
        assert browser.messages == []
