"""The generated page of errnos."""

from contrib.docs import errnos_page
from s3fs_meta import errors


def test_error_classes_omitted_from_the_errno_page_have_subclasses() -> None:
    """A base class of errors may be omitted from the page only if it has subclasses."""
    assert [kind for kind in errnos_page.FAMILIES if not kind.__subclasses__()] == []


def test_errno_page_lists_only_errors_of_requests() -> None:
    """The errno page has a row for each error of requests, and none for other errors."""
    rows = [line for line in errnos_page.page().splitlines() if line.startswith("| E")]

    assert any(row.startswith("| ENOENT | ") and row.endswith("| no | no |") for row in rows)
    assert not any(f"`{errors.UsageError.__name__}`" in row for row in rows)
