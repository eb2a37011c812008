"""The head: the image that the filesystem is, as the lease names it and as this host remembers it.

Owns: the rows ``head``, ``attempt`` and ``changed`` of ``local_state``; finding manifests.
"""

import json

from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.image import Manifest
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import FormatError
from s3fs_meta.meta import local_state
from s3fs_meta.meta.database import Database
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore


def to_text(head: Head) -> str:
    """Return a head as one row of ``local_state`` holds it."""
    return json.dumps([head.txg, head.manifest_key, head.manifest_hash])


def from_text(text: str | None) -> Head | None:
    """Return the head of a row, None without one."""
    if text is None:
        return None
    txg, key, content = json.loads(text)
    return Head(txg=Txg(txg), manifest_key=ObjectKey(key), manifest_hash=content)


def confirm(db: Database, head: Head, *, changed: bool) -> None:
    """Record that *head* is the head. Transaction: inside a group."""
    local_state.put(db, "head", to_text(head))
    local_state.delete(db, "attempt")
    local_state.put(db, "changed", "1" if changed else "0")


async def load_manifest(store: ObjectStore, keyring: Keyring, head: Head | None) -> Manifest | None:
    """Fetch and verify the manifest of a head, None without a head.

    Raises:
        FormatError: the object is not the one that the head names.
        ObjectMissingError: it is gone.
    """
    if head is None:
        return None
    fetched = await store.get(head.manifest_key)
    if image_codec.content_hash(fetched.data) != head.manifest_hash:
        raise FormatError(head.manifest_key, "it is not the image that the lease names")
    return image_codec.decode(head.manifest_key, fetched.data, keyring)
