"""The commands that bring a file back."""

import html

import pytest

from tests.browse.conftest import Served

pytestmark = pytest.mark.mount


def test_commands_to_bring_a_file_back_are_shown(served: Served) -> None:
    page = html.unescape(served.page("/at/2/reports/old%20name"))
    assert "s3fs-meta restore --at txg=2 --to restored local://" in page
    assert "'reports/old name'" in page
