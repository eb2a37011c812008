"""The generated pages about commands, exit statuses and errnos are up to date."""

from pathlib import Path

import pytest

from contrib.docs import reference

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", ["cli.md", "exit-codes.md", "errnos.md"])
def test_page_is_fresh(name: str) -> None:
    """The page in the repository equals the one that ``make docs`` generates."""
    assert (REFERENCE / name).read_text() == reference.PAGES[name]()
