"""Tests of pages and downloads of content that the bucket has lost."""

from pathlib import Path

import pytest

from tests.browse.serving import Served

pytestmark = pytest.mark.mount


def test_download_of_lost_content_fails_and_never_contains_zeros(served: Served) -> None:
    """A request for lost content fails with an error, and other pages can still be read."""
    packs = [path for path in (served.tree.parent / "bucket" / "pack").rglob("*") if path.is_file()]
    hidden = [(path, path.rename(path.with_name(f"{path.name}.hidden"))) for path in packs]
    try:
        page = served.ask(f"/at/{served.txg}/reports/large")
        assert page.status == 500
        assert "the bucket has lost the content" in page.text
        assert served.ask(f"/at/{served.txg}/reports").status == 200
    finally:
        for path, other in hidden:
            Path(other).rename(path)
    whole = served.ask(f"/content/{served.txg}/reports/large").content
    assert whole == (served.tree / "reports" / "large").read_bytes()
