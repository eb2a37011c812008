"""The pages about versions and changes."""

import re

import pytest

from tests.browse.conftest import Served

pytestmark = pytest.mark.mount


def test_versions_of_a_file_are_compared(served: Served) -> None:
    listed = served.page("/versions/reports/report.txt")
    txgs = [int(txg) for txg in re.findall(r'name="old" value="(\d+)"', listed)]
    assert len(txgs) == 2
    page = served.page(f"/compare/reports/report.txt?old={txgs[1]}&new={txgs[0]}")
    rows = re.findall(r'<tr class="(\w+)">', page)
    assert rows == ["equal", "changed", "equal", "added"]
    assert "four &lt;b&gt;" in page
    assert "removed" in served.page("/versions/reports/old%20name")


def test_changes_since_a_point_in_time_are_listed(served: Served) -> None:
    page = served.page("/changes/2/reports")
    rows = dict(re.findall(r'<th scope="row"><a [^>]*>([^<]*)</a></th>\n<td>(\w+)', page))
    assert rows["reports/old name"] == "removed"
    assert rows["reports/notes"] == "changed"
    assert rows["reports/picture.png"] == "added"
    assert "Nothing changed" in served.page(f"/changes/{served.txg}/")
