"""Helpers for tests that rebuild a filesystem in a memory store."""

import pytest

from s3fs_meta.check.from_packs import Rebuilt, rebuild
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import image as image_codec
from s3fs_meta.model import ObjectKey
from s3fs_meta.sync.image import pieces, restore
from s3fs_meta.sync.progress import no_progress
from tests.sync.conftest import Power


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut images into pieces of 8 KiB, which are two pages of the database."""
    for module in (image_codec, pieces, restore):
        monkeypatch.setattr(module, "IMAGE_PIECE_BYTES", 8192)


async def run(power: Power) -> tuple[int, int, list[ObjectKey]]:
    """Rebuild the filesystem; return the numbers of files and packs, and the unreadable packs."""
    made = await rebuilt(power)
    return made.files, made.packs, made.unreadable


async def rebuilt(power: Power) -> Rebuilt:
    """Rebuild the filesystem; return the complete result of the rebuild."""
    keys = await power.keys()
    tmp = power.home / "scratch"
    tmp.mkdir(exist_ok=True)
    return await rebuild(
        power.store,
        keys.keyring,
        keys.superblock,
        tmp,
        SystemClock(),
        no_progress,
        lambda: None,
    )
