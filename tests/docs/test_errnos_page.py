"""Tests of the generated reference page of errnos."""

from contrib.docs import errnos_page
from s3fs_meta import errors


def test_errno_page_omits_an_error_class_only_if_it_has_subclasses() -> None:
    assert [kind for kind in errnos_page.FAMILIES if not kind.__subclasses__()] == []


def test_errno_page_lists_errors_of_requests_and_omits_errors_of_commands() -> None:
    rows = [line for line in errnos_page.page().splitlines() if line.startswith("| E")]

    assert any(row.startswith("| ENOENT | ") and row.endswith("| no | no |") for row in rows)
    assert not any(f"`{errors.UsageError.__name__}`" in row for row in rows)
