"""Tests of the browse pages that list file versions and changes between points in time."""

import html
import re

import pytest

from s3fs_meta.browse.limits import BROWSE_SINCE_SHOWN
from s3fs_meta.browse.names import shown
from tests.browse.conftest import HOSTILE
from tests.browse.serving import Served

pytestmark = pytest.mark.mount


def _versions(page: str) -> list[str]:
    """Return the versions that a page offers for comparison, newest first."""
    return re.findall(r'name="old" value="(\d+-\d+)"', page)


def test_two_versions_of_a_file_can_be_compared(served: Served) -> None:
    listed = served.page("/versions/reports/report.txt")
    new, old = _versions(listed)
    page = served.page(f"/compare/reports/report.txt?old={old}&new={new}")
    rows = re.findall(r'<tr class="(\w+)">', page)
    assert rows == ["equal", "changed", "equal", "added"]
    assert "four &lt;b&gt;" in page
    assert served.page(f"/compare/reports/report.txt?old=2&new={served.txg}").count("<tr") == 5
    assert "The versions are equal." in served.page("/compare/reports/report.txt?old=2&new=2")
    assert re.findall(r'value="(\d+-\d+)"[^>]* checked', listed) == [new, old]
    # On a phone, only the left part of the table is visible.
    assert re.findall(r'<th scope="col"[^>]*>(\w+)</th>', listed)[:3] == ["Time", "Old", "New"]


def test_removal_of_a_file_is_listed_as_a_version_that_cannot_be_compared(served: Served) -> None:
    page = served.page("/versions/reports/old%20name")
    assert "removed" in page
    assert len(_versions(page)) == 1


def test_file_versions_from_before_a_rename_are_shown_at_their_old_path(served: Served) -> None:
    page = served.page("/versions/latter")
    assert "as former" in page or "renamed" in page
    links = [html.unescape(link) for link in re.findall(r'href="[^"]*(/inode/[^"]*)"', page)]
    found = [served.ask(link) for link in links]
    assert [one.status for one in found] == [303] * len(links)
    paths = [one.headers["Location"].removeprefix(served.root) for one in found]
    assert paths[0].endswith("/latter")
    assert paths[-1] == "/at/2/reports/former"
    assert "before the rename" in served.page(paths[-1])
    new, *_, old = _versions(page)
    compared = served.page(f"/compare/latter?old={old}&new={new}")
    assert "before the rename" in compared
    assert "after the rename" in compared
    link = re.search(r'href="[^"]*(/content/2/[^"]*)"', compared)
    assert link is not None
    assert served.ask(link[1]).content == b"before the rename\n"


def test_changes_page_lists_all_changes_since_a_point_in_time(served: Served) -> None:
    page = served.page("/changes/2/reports")
    rows = dict(re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a></th>\n<td>(\w+)', page))
    assert rows["reports/old name"] == "removed"
    assert rows["reports/notes"] == "changed"
    assert rows["reports/picture.png"] == "added"
    assert rows["latter"] == "renamed"
    assert "Nothing changed" in served.page(f"/changes/{served.txg}/")


def _listed(page: str) -> dict[str, str]:
    """Return the changes in the list beside a folder, by displayed name."""
    found = re.findall(r'<li><a [^>]*>([^<]*)</a>\n<span class="note">([^<]*)</span>', page)
    return {html.unescape(name): html.unescape(change) for name, change in found}


def test_list_beside_a_folder_shows_the_first_changes_with_paths_relative_to_the_folder(
    served: Served,
) -> None:
    page = served.page("/since/2/reports")
    found = _listed(page)
    assert found["old name"] == "removed"
    assert found["notes"] == "changed"
    assert found["picture.png"] == "added"
    assert found["/latter"] == "renamed from former"
    assert f'href="{served.root}/at/2/reports/old%20name"' in page
    assert f'href="{served.root}/at/{served.txg}/reports/notes"' in page
    every = served.page("/since/2/")
    assert len(_listed(every)) == BROWSE_SINCE_SHOWN
    assert _listed(every)["latter"] == "renamed from reports/former"
    assert f"the first {BROWSE_SINCE_SHOWN} are shown" in every
    assert "Nothing changed" in served.page(f"/since/{served.txg}/")


def test_list_beside_a_folder_shows_hostile_names_as_text(served: Served) -> None:
    page = served.page("/since/2/hostile")
    names = set(_listed(page))
    assert names - {"."} == {shown(name) for name in HOSTILE}
    assert "<script" not in page
    assert "\u202e" not in page
