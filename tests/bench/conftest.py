"""Fixtures for tests of the benchmarks."""

from collections.abc import Iterator

import pytest

from tests.page_cache import locked_page_cache


@pytest.fixture(autouse=True)
def page_cache() -> Iterator[None]:
    """Hold the shared lock that allows benchmarks to drop the page cache of the machine."""
    with locked_page_cache(is_exclusive=False):
        yield
