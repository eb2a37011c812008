"""Fixtures: the s3fs-meta command as users run it, and an empty filesystem to copy from."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.sync.uncached_reads import Content
from tests.cli.conftest import empty, mounted, place, program

__all__ = ["empty", "mounted", "place", "program"]


FACTS = {"uuid": b"u", "block_bytes": b"65536", "cookie_key": b"k" * 16}


class Nothing:
    """A source of content that returns no bytes."""

    async def read(self, wanted: Sequence[Located]) -> list[Content]:
        """Return no bytes, whatever block is requested."""
        return [Content(b"", 0) for _ in wanted]


@pytest.fixture
def db(tmp_path: Path) -> Database:
    """Return the database of an empty filesystem, with an open commit group."""
    made = Database.create(tmp_path / "meta.db", Pragmas(), FACTS)
    made.begin()
    return made


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Return an empty directory to copy into."""
    (tmp_path / "new" / "out").mkdir(0o700, parents=True)
    return tmp_path / "new" / "out"
