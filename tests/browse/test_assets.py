"""Tests of the style sheet, the icon and the script of the browse pages."""

import re

import pytest

from s3fs_meta.browse.assets import ASSETS, SCRIPT
from tests.browse.serving import Served


def test_page_script_sets_no_style_and_inserts_no_html() -> None:
    """The page script reads file names from attributes, so it must not parse them as HTML."""
    text = SCRIPT.content.decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(", text
    )
    assert "fetch(" not in text


@pytest.mark.mount
def test_assets_of_the_browse_pages_have_correct_content_types(served: Served) -> None:
    for name, asset in ASSETS.items():
        reply = served.ask(f"/{name.decode()}")
        assert (reply.content, reply.headers["Content-Type"]) == (
            asset.content,
            asset.content_type,
        )
