"""The generated page of errnos."""

from contrib.docs import errnos_page
from s3fs_meta import errors


def test_omitted_base_classes_have_subclasses() -> None:
    """A base class of errors is omitted from the page only if it has subclasses."""
    assert [kind for kind in errnos_page.FAMILIES if not kind.__subclasses__()] == []


def test_errors_of_requests_have_a_row() -> None:
    """The page has a row for errors of requests, and none for errors of commands."""
    rows = [line for line in errnos_page.page().splitlines() if line.startswith("| E")]

    assert any(row.startswith("| ENOENT | ") and row.endswith("| no | no |") for row in rows)
    assert not any(f"`{errors.UsageError.__name__}`" in row for row in rows)
