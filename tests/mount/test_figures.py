"""Figures of a mount; tests/cli/test_status.py compares them on real mounts."""

import pytest

from s3fs_meta.mount.figures import ratio


@pytest.mark.parametrize(("whole", "part", "expected"), [(3, 2, 1.5), (0, 2, 0.0), (3, 0, None)])
def test_ratio_without_data_is_none(whole: int, part: int, expected: float | None) -> None:
    """Without data a ratio is None, not an error or a meaningless number."""
    assert ratio(whole, part) == expected
