"""Tests of pages about content that the bucket has lost."""

import http.client
from pathlib import Path

import pytest

from tests.browse.serving import Served

pytestmark = pytest.mark.mount


def test_page_of_a_file_with_lost_content_reports_the_loss(served: Served) -> None:
    """Downloads are visibly incomplete. Other pages can still be read, and later the file too."""
    packs = [path for path in (served.tree.parent / "bucket" / "pack").rglob("*") if path.is_file()]
    hidden = [(path, path.rename(path.with_name(f"{path.name}.hidden"))) for path in packs]
    try:
        page = served.ask(f"/at/{served.txg}/reports/large")
        assert page.status == 500
        assert "the bucket has lost the content" in page.text
        assert served.ask(f"/at/{served.txg}/reports").status == 200
        for download in ("content/{}/reports/large", "tar/{}/reports", "zip/{}/reports"):
            with pytest.raises(http.client.IncompleteRead):
                served.ask("/" + download.format(served.txg))
    finally:
        for path, other in hidden:
            Path(other).rename(path)
    whole = served.ask(f"/content/{served.txg}/reports/large").content
    assert whole == (served.tree / "reports" / "large").read_bytes()
