"""A filesystem of its own for every test, in good order."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.check.healthy import Healthy


@pytest.fixture
def healthy(tmp_path: Path) -> Iterator[Healthy]:
    """Return a filesystem in good order, with a bucket and a cache directory."""
    made = Healthy(tmp_path)
    made.add_lease()
    yield made
    made.db.close()
