"""Restoring an image."""

from pathlib import Path

import pytest

from s3fs_meta.codec.image import parse_piece_key
from s3fs_meta.errors import FormatError, ObjectMissingError
from tests.damage import flipped

from .conftest import Power


def pieces_of(power: Power) -> list[str]:
    """Return the keys of all pieces in the store."""
    return [key for key in power.store.objects if parse_piece_key(key) is not None]


async def test_damaged_piece_is_named_and_leaves_no_database(power: Power) -> None:
    """A flipped bit is found before anything is opened; a later try may succeed."""
    [key] = pieces_of(power)
    good = power.store.objects[key]  # type: ignore[index]
    power.store.objects[key] = flipped(good, -1)  # type: ignore[index]

    with pytest.raises(FormatError, match=key):
        async with power.session("a"):
            pass
    assert not list((power.home / "a").glob("meta.db*"))  # its place on the disk is free again

    power.store.objects[key] = good  # type: ignore[index]
    async with power.session("a") as session:
        assert session.status.writable


async def test_missing_piece_is_named(power: Power) -> None:
    """An image with a hole is an error, not a smaller filesystem."""
    [key] = pieces_of(power)
    del power.store.objects[key]  # type: ignore[arg-type]

    with pytest.raises(ObjectMissingError, match=key):
        async with power.session("a"):
            pass


async def test_interrupted_restore_starts_over(power: Power, tmp_path: Path) -> None:
    """What an interrupted restore left is no database, and is overwritten."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "meta.db.restoring").write_bytes(b"half")

    async with power.session("a") as session:
        assert session.status.writable

    assert not (tmp_path / "a" / "meta.db.restoring").exists()
