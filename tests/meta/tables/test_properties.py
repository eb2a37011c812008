"""Facts that never change."""

import pytest

from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import properties as facts


def test_mkfs_wrote_them_down(db: Database, properties: dict[str, bytes]) -> None:
    """The given facts, and the version of the schema."""
    assert facts.all_of(db) == {**properties, "schema_version": b"2"}
    assert facts.get(db, "uuid") == properties["uuid"]


def test_missing_fact_is_damage(db: Database) -> None:
    """A database without one of them is not ours."""
    with pytest.raises(FormatError, match="'colour' is missing"):
        facts.get(db, "colour")
