"""Tests of the browse pages that list the entries of folders."""

import html
import re
from urllib.parse import quote

import pytest

from tests.browse.conftest import HOSTILE, NAMES
from tests.browse.serving import Served

pytestmark = pytest.mark.mount


def test_folder_page_lists_the_tree_at_the_chosen_point_in_time(served: Served) -> None:
    then, now = served.page("/at/2/reports"), served.page(f"/at/{served.txg}/reports")
    assert "old name" in then
    assert "picture.png" not in then
    assert "old name" not in now
    assert "picture.png" in now
    assert served.page("/").count("changes since") == served.txg + 1


def test_folder_page_shows_a_frame_with_changes_only_for_a_past_point_in_time(
    served: Served,
) -> None:
    then, now = served.page("/at/2/reports"), served.page(f"/at/{served.txg}/reports")
    assert f'<iframe src="{served.root}/since/2/reports"' in then
    assert f'href="{served.root}/changes/2/reports"' in then
    assert "<iframe" not in now
    assert "changes/" not in now


@pytest.mark.parametrize("name", HOSTILE)
def test_folder_page_shows_hostile_names_as_text_with_working_links(
    served: Served, name: bytes
) -> None:
    page = served.page(f"/at/{served.txg}/hostile")
    link = f"/at/{served.txg}/hostile/{quote(name)}"
    assert f'href="{served.root}{link}"' in page
    assert "<script" not in page
    assert "\u202e" not in page
    path = f"hostile/{quote(name)}"
    assert served.ask(f"/content/{served.txg}/{path}").content == name
    shown = served.page(link)  # The content of each file is its own name.
    assert "<script" not in shown
    assert "\u202e" not in shown
    assert "created" in served.page(f"/versions/{path}")
    hidden = re.search(r'name="path" value="([^"]*)"', served.page(link))
    assert hidden is not None
    location = served.ask(f"/go?at=newest&path={quote(html.unescape(hidden[1]))}").headers
    assert location["Location"] == served.root + link


def test_large_folder_is_split_into_pages(served: Served) -> None:
    found: list[str] = []
    path: str | None = f"/at/{served.txg}/many"
    pages = 0
    while path is not None:
        page = served.page(path)
        found += re.findall(r">(\d{5})</a>", page)
        following = re.search(r'rel="next" href="([^"]*)"', page)
        path = None if following is None else following[1].removeprefix(served.root)
        pages += 1
    assert found == [f"{number:05}" for number in range(NAMES)]
    assert pages == 3
