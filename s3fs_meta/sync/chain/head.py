"""The head: the newest image according to the lease, and this host's records about it.

Owns: the rows ``head``, ``attempt``, ``changed`` and ``image_wanted`` of ``local_state``; finding
manifests.
"""

from contextlib import aclosing

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.envelope import ENCODED_BYTES_MAX
from s3fs_meta.codec.image import Manifest, ManifestRef
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore


def recorded(db: Database, row: str) -> Head | None:
    """Return the head in a row of ``local_state``, or None if the row does not exist.

    Raises:
        FormatError: the row is damaged.
    """
    text = local_state.get(db, row)
    return None if text is None else lease_codec.decode_head(str(db.path), text)


def note_attempt(db: Database, head: Head) -> None:
    """Record that *head* is about to be published. Requires an open transaction."""
    local_state.put(db, "attempt", lease_codec.encode_head(head))


def confirm(db: Database, head: Head, *, changed: bool) -> None:
    """Record that *head* is now the head in the lease. Requires an open transaction."""
    local_state.put(db, "head", lease_codec.encode_head(head))
    local_state.delete(db, "attempt")
    local_state.delete(db, "image_wanted")
    local_state.put(db, "changed", "1" if changed else "0")


def want_image(db: Database) -> None:
    """Record that a change can be shipped only as an image. Requires an open transaction."""
    local_state.put(db, "image_wanted", "1")


def is_image_wanted(db: Database) -> bool:
    """Return whether there is an unshipped change that can be shipped only as an image."""
    return local_state.get(db, "image_wanted") is not None


async def manifests(store: ObjectStore) -> list[ObjectKey]:
    """Return the keys of all manifests in the listing, newest txg first."""
    found: list[tuple[Txg, Epoch, ObjectKey]] = []
    async with aclosing(store.list(image_codec.PREFIX)) as listing:
        async for info in listing:
            name = image_codec.parse_manifest_key(info.key)
            if name is not None:
                found.append((name.txg, name.epoch, info.key))
    return [key for _txg, _epoch, key in sorted(found, reverse=True)]


async def load_manifest(store: ObjectStore, keyring: Keyring, ref: ManifestRef) -> Manifest:
    """Fetch and verify a manifest; if the hash in *ref* is empty, accept any authentic object.

    Raises:
        FormatError: the object is damaged, or does not have the hash in *ref*.
        ObjectMissingError: the manifest does not exist.
    """
    fetched = await store.get(ref.key, ENCODED_BYTES_MAX)
    if ref.hash and image_codec.content_hash(fetched.data) != ref.hash:
        raise FormatError(ref.key, "the manifest does not match the recorded hash of the image")
    return await in_thread(image_codec.decode, ref.key, fetched.data, keyring)
