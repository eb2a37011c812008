"""Fixtures: a new healthy filesystem for every test of fsck."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.check.healthy import Healthy
from tests.check.rebuilding import small_pieces
from tests.sync.conftest import power

__all__ = ["power", "small_pieces"]


@pytest.fixture
def healthy(tmp_path: Path) -> Iterator[Healthy]:
    """Return a healthy filesystem with its bucket and its cache directory."""
    made = Healthy(tmp_path)
    made.add_lease()
    yield made
    made.db.close()
