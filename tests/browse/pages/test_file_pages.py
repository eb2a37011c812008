"""Tests of downloads of files, and of previews of their content."""

import pytest

from tests.browse.conftest import FIRST, SECOND, picture
from tests.browse.serving import Served

pytestmark = pytest.mark.mount


def test_downloaded_file_has_the_content_of_the_file_in_the_filesystem(served: Served) -> None:
    for name in ("report.txt", "picture.png", "sparse", "page.html"):
        reply = served.ask(f"/content/{served.txg}/reports/{name}")
        assert reply.content == (served.tree / "reports" / name).read_bytes()
        assert reply.headers["Content-Type"] == "application/octet-stream"
        assert reply.headers["Content-Disposition"].startswith("attachment")
    assert served.ask("/content/2/reports/report.txt").content == FIRST
    assert served.ask(f"/content/{served.txg}/reports/report.txt").content == SECOND


def test_preview_shows_only_raster_images(served: Served) -> None:
    shown = served.ask(f"/picture/{served.txg}/reports/picture.png")
    assert shown.content == picture()
    assert shown.headers["Content-Type"] == "image/png"
    assert "<img" in served.page(f"/at/{served.txg}/reports/picture.png")
    for name in ("picture.svg", "page.html", "report.txt"):
        assert served.ask(f"/picture/{served.txg}/reports/{name}").status == 404
        page = served.page(f"/at/{served.txg}/reports/{name}")
        assert "<img" not in page
        assert "<script" not in page
        assert "<svg" not in page
