"""The time line."""

import re

import pytest

from tests.browse.conftest import Served

pytestmark = pytest.mark.mount


def test_each_txg_has_the_number_of_changed_files(served: Served) -> None:
    page = served.page("/")
    rows = re.findall(r'<td>(\d+)</td>\n<td class="number">([\d,]+)</td>', page)
    numbers = {int(txg): int(count.replace(",", "")) for txg, count in rows}
    assert sorted(numbers) == list(range(served.txg + 1))
    assert numbers[2] == 5  # three files, their folder and the root
    assert numbers[3] > 1200
    assert "photos" in page


def test_part_of_the_time_line_is_shown(served: Served) -> None:
    page = served.page("/?first=2&last=2")
    assert page.count("changes since") == 1
    assert "show everything" in page
