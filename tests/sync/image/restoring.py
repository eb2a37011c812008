"""Restoring one example manifest from a store."""

from pathlib import Path

from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Manifest, ManifestRef, Piece
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.model import Epoch, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.progress import no_progress
from tests.sync.conftest import Power

UUID = "01234567-89ab-cdef-0123-456789abcdef"
PLAIN = Keyring(None, bytes(32))
KEY = image_codec.manifest_key(Txg(1), Epoch(1), bytes(8))


async def restored(store: ObjectStore, target: Path) -> None:
    """Restore the image with the manifest ``KEY``."""
    restorer = Restorer(store, PLAIN, UUID, no_progress)
    await restorer.restore(ManifestRef(KEY), target)


async def restorer_of(power: Power, store: ObjectStore | None = None) -> Restorer:
    """Return a restorer of the filesystem's databases."""
    keys = await power.keys()
    return Restorer(store or power.store, keys.keyring, keys.superblock.uuid, no_progress)


PREFIX = image_codec.image_prefix(Txg(1), Epoch(1), bytes(8))


def image_of(*pieces: Piece) -> Manifest:
    """Return a manifest with the given image pieces."""
    size = sum(piece.plain_bytes for piece in pieces)
    return Manifest(Txg(1), Epoch(1), UUID, 1, 4096, size, 1, None, pieces, 1, 1)
