"""Figures of a mount. Those of real mounts are tested in tests/cli/test_status.py."""

import pytest

from s3fs_meta.mount.figures import ratio


@pytest.mark.parametrize(("whole", "part", "expected"), [(3, 2, 1.5), (0, 2, 0.0), (3, 0, None)])
def test_ratio_is_none_without_data(whole: int, part: int, expected: float | None) -> None:
    assert ratio(whole, part) == expected
