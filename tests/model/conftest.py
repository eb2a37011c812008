"""Fixtures: an empty filesystem, which each random program copies."""

from pathlib import Path

import pytest
import trio

from s3fs_meta.objects.memory import MemoryStore
from tests.model.machine import make_template


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> MemoryStore:
    """Return a store with an empty filesystem, which every random program copies."""
    home: Path = tmp_path_factory.mktemp("mkfs")
    return trio.run(make_template, home)
