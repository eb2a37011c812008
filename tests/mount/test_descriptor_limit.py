"""A mount may have more files open than the usual bound."""

import resource
from collections.abc import Iterator

import pytest

from s3fs_meta.limits import OPEN_FILES_WANTED
from s3fs_meta.mount import descriptor_limit


@pytest.fixture(autouse=True)
def bounds() -> Iterator[tuple[int, int]]:
    """Return the bounds of this process, and put them back."""
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield found
    resource.setrlimit(resource.RLIMIT_NOFILE, found)


@pytest.mark.parametrize("soft", [1024, OPEN_FILES_WANTED])
def test_low_bound_is_raised(bounds: tuple[int, int], soft: int) -> None:
    """As far as is wanted."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, bounds[1]))

    descriptor_limit.raise_bound()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (OPEN_FILES_WANTED, bounds[1])


def test_higher_limit_is_kept(bounds: tuple[int, int]) -> None:
    """The administrator chose it."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES_WANTED + 1, bounds[1]))

    descriptor_limit.raise_bound()

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == OPEN_FILES_WANTED + 1


def test_hard_bound_is_kept(bounds: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower hard limit is no error."""
    monkeypatch.setattr(descriptor_limit, "OPEN_FILES_WANTED", bounds[1] + 1)

    descriptor_limit.raise_bound()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (bounds[1], bounds[1])
