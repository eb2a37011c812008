"""Figures of a mount. That they are right is asked of real mounts in test_status."""

import pytest

from s3fs_meta.mount.figures import ratio


@pytest.mark.parametrize(("whole", "part", "expected"), [(3, 2, 1.5), (0, 2, 0.0), (3, 0, None)])
def test_ratio_of_nothing_is_none(whole: int, part: int, expected: float | None) -> None:
    """Not a division by zero, and not a number that says nothing."""
    assert ratio(whole, part) == expected
