"""Tests of the browse page that shows the results of a search by name."""

import html
import re
from urllib.parse import quote

import pytest

from tests.browse.conftest import HOSTILE, LONG
from tests.browse.serving import Served

pytestmark = pytest.mark.mount


def found(served: Served, path: str) -> tuple[list[str], list[str]]:
    """Return the paths that the result page links to, of current entries and of former names."""
    now, _, former = served.page(path).partition('id="former"')
    entries = re.findall(rf'row"><a href="{served.root}/at/\d+/([^"]*)"', now)
    names = re.findall(rf'<li><a href="{served.root}/versions/([^"]*)"', former)
    return [html.unescape(one) for one in entries], [html.unescape(one) for one in names]


def test_search_finds_a_part_of_a_name_in_any_folder(served: Served) -> None:
    txg = served.txg
    assert found(served, f"/find/{txg}/?name=REPORT") == (["reports", "reports/report.txt"], [])
    assert found(served, f"/find/{txg}/?name=*.txt") == (["reports/report.txt"], [])
    assert found(served, f"/find/{txg}/hostile?name=report") == ([], [])
    assert found(served, f"/find/{txg}/reports?name=re??rt.*") == (["reports/report.txt"], [])
    assert f'href="{served.root}/versions/reports/report.txt"' in served.page(
        f"/find/{txg}/?name=report"
    )


def test_search_finds_removed_and_renamed_files_of_a_folder(served: Served) -> None:
    assert found(served, f"/find/{served.txg}/reports?name=OLD") == ([], ["reports/old%20name"])
    assert found(served, f"/find/{served.txg}/reports?name=former") == ([], ["reports/former"])
    assert found(served, "/find/2/?name=former") == (["reports/former"], [])


@pytest.mark.parametrize("name", HOSTILE)
def test_search_finds_hostile_names_and_shows_them_as_text(served: Served, name: bytes) -> None:
    part = name.replace(b"\xff\xfe", b"*")
    page = served.page(f"/find/{served.txg}/hostile?name={quote(part)}")
    assert f'href="{served.root}/at/{served.txg}/hostile/{quote(name)}"' in page
    assert "<script" not in page
    # Only the search field contains the text as the user typed it.
    assert "\u202e" not in page.replace('value="\u202e', "")


@pytest.mark.parametrize("typed", ["%25", "_", "[", "\\\\", LONG])
def test_search_supports_only_the_wildcards_star_and_question_mark(
    served: Served, typed: str
) -> None:
    paths, _ = found(served, f"/find/{served.txg}/strange?name={typed}")
    assert paths == ([f"strange/{LONG}"] if typed == LONG else [])


def test_search_page_reports_that_more_results_exist(served: Served) -> None:
    page = served.page(f"/find/{served.txg}/many?name=0")
    assert "200 found; there are more" in page


@pytest.mark.parametrize("rest", ["", "?name=", f"?name={'x' * 256}", "reports/report.txt?name=x"])
def test_search_text_that_is_empty_or_too_long_is_refused(served: Served, rest: str) -> None:
    assert served.ask(f"/find/{served.txg}/{rest}").status == 404


def test_folder_page_has_a_search_form(served: Served) -> None:
    page = served.page(f"/at/{served.txg}/reports")
    assert f'action="{served.root}/find/{served.txg}/reports"' in page
