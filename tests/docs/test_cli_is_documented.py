"""Tests of the generated reference pages of commands, exit statuses and errnos."""

from pathlib import Path

import pytest

from contrib.docs import reference

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", ["cli.md", "exit-codes.md", "errnos.md"])
def test_committed_reference_page_is_up_to_date(name: str) -> None:
    """Each committed page matches the output of ``make docs``."""
    assert (REFERENCE / name).read_text() == reference.PAGES[name]()
