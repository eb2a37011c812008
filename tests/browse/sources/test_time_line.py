"""Tests of the browse page that lists the txgs of a filesystem as a time line."""

import re

import pytest

from tests.browse.serving import Served

pytestmark = pytest.mark.mount


def test_time_line_shows_the_number_of_changed_files_of_each_txg(served: Served) -> None:
    page = served.page("/")
    rows = re.findall(r'<td>(\d+)</td>\n<td class="number">([\d,]+)</td>', page)
    numbers = {int(txg): int(count.replace(",", "")) for txg, count in rows}
    assert sorted(numbers) == list(range(served.txg + 1))
    assert numbers[2] == 6  # The changelog contains the inodes of four files and two directories.
    # On a loaded machine the files may be created in several txgs.
    assert sum(count for txg, count in numbers.items() if txg > 2) > 1200
    assert "photos" in page


def test_time_line_can_show_a_chosen_range_of_txgs(served: Served) -> None:
    page = served.page("/?first=2&last=2")
    assert page.count("changes since") == 1
    assert "show everything" in page


def test_plot_of_the_time_line_has_a_bar_for_each_run_of_txgs(served: Served) -> None:
    page = served.page("/")
    bars = re.findall(
        r'class="bar[^>]* data-first="(\d+)" data-last="(\d+)" data-label="([^"]*)"', page
    )
    assert [int(first) for first, _, _ in bars] == list(range(served.txg + 1))
    assert "6 changed files, kept as before-the-change" in bars[2][2]
    assert "kept as" not in bars[3][2]
    assert 'integrity="sha256-' in page
    assert 'data-move="Wider"' not in page  # The plot shows the complete time line.
    part = served.page("/?first=2&last=2")
    assert set(re.findall(r'data-move="(\w+)"', part)) == {"Earlier", "Later", "Wider"}


def test_time_line_page_marks_kept_points_in_the_plot_and_lists_them(served: Served) -> None:
    page = served.page("/")
    assert re.findall(r'class="kept"[^>]* data-txg="(\d+)"', page) == ["2"]
    listed = re.search(r'<a href="([^"]*)">before-the-change</a>', page)
    assert listed is not None
    assert listed[1] == f"{served.root}/at/2/"
    part = served.page("/?first=3&last=3")
    assert 'class="kept"' not in part
    assert ">before-the-change</a>" in part
    assert served.ask("/go?at=before-the-change&path=").headers["Location"].endswith("/at/2/")


def test_time_line_page_is_identical_when_requested_again(served: Served) -> None:
    """The changes in a run of txgs are counted only when the page is first viewed."""
    path = f"/?first=1&last={served.txg}"
    assert served.page(path) == served.page(path)
    assert served.page("/").count("changes since") == served.txg + 1
