"""Figures of a mount; test_status compares them on real mounts."""

import pytest

from s3fs_meta.mount.figures import ratio


@pytest.mark.parametrize(("whole", "part", "expected"), [(3, 2, 1.5), (0, 2, 0.0), (3, 0, None)])
def test_ratio_without_data_is_none(whole: int, part: int, expected: float | None) -> None:
    """Neither a division by zero nor a meaningless number."""
    assert ratio(whole, part) == expected
