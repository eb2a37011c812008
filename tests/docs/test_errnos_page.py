"""The page of errnos."""

from contrib.docs import errnos_page
from s3fs_meta import errors


def test_families_are_families() -> None:
    """Something stands below each class that is left out."""
    assert [kind for kind in errnos_page.FAMILIES if not kind.__subclasses__()] == []


def test_error_has_a_row_unless_only_commands_meet_it() -> None:
    """With its errno, and whether it is logged."""
    rows = [line for line in errnos_page.page().splitlines() if line.startswith("| E")]

    assert any(row.startswith("| ENOENT | ") and row.endswith("| no | no |") for row in rows)
    assert not any(f"`{errors.UsageError.__name__}`" in row for row in rows)
