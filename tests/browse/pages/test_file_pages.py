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


def test_part_of_a_file_can_be_downloaded(served: Served) -> None:
    """A resumed download sends If-Range, so that the parts of two versions are never joined."""
    for name in ("report.txt", "sparse"):
        path, content = f"/content/{served.txg}/reports/{name}", b""
        content = (served.tree / "reports" / name).read_bytes()
        size, middle = len(content), len(content) // 2
        head = served.ask(path, "HEAD")
        assert (head.status, head.headers["Content-Length"]) == (200, str(size))
        assert (head.headers["Accept-Ranges"], head.content) == ("bytes", b"")

        for wanted, first, last in (
            (f"bytes={middle}-", middle, size - 1),
            ("bytes=-3", size - 3, size - 1),
            (f"bytes=1-{middle}", 1, middle),
            (f"bytes=0-{2 * size}", 0, size - 1),
        ):
            reply = served.ask(path, Range=wanted, **{"If-Range": head.headers["ETag"]})
            assert reply.status == 206
            assert reply.headers["Content-Range"] == f"bytes {first}-{last}/{size}"
            assert reply.content == content[first : last + 1]
        beyond = served.ask(path, Range=f"bytes={size}-")
        assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")
        for ignored in ("bytes=5-2", "lines=1-2", "bytes=0-1,3-4", "bytes=-"):
            assert served.ask(path, Range=ignored).content == content
        changed = served.ask(path, Range="bytes=1-2", **{"If-Range": '"other"'})
        assert (changed.status, changed.content) == (200, content)
