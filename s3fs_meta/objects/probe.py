"""A test of whether a store honours conditional writes.

Some stores silently ignore the conditions. With such a store, two hosts that write at the same time
could destroy a filesystem. Only test requests detect this. mkfs sends such requests, and so does
every opening of a filesystem for writing.
"""

from typing import Final

import trio

from s3fs_meta.errors import PreconditionError, UnexpectedStoreError
from s3fs_meta.limits import STORE_CLEANUP_S_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag, ObjectStore

PREFIX: Final = "probe/"
# All contents that a probe (``probe/<nonce>``) may have.
CONTENTS: Final = frozenset({b"first", b"second", b"taken", b"outdated"})


async def probe(store: ObjectStore, nonce: str) -> bool:
    """Return whether *store* refuses to create an existing object and to replace an old version.

    The test creates and deletes the object ``probe/<nonce>``; a killed test leaves it behind.

    Args:
        store: any store; the probe sends it a few requests.
        nonce: hexadecimal digits that were never used before.

    Raises:
        StoreError: a request failed, so the result is unknown.

    Always yields to other tasks.
    """
    key = ObjectKey(f"{PREFIX}{nonce}")
    try:
        return await _refuses(store, key)
    except UnexpectedStoreError as exc:
        if "NotImplemented" in exc.code:
            return False
        raise
    finally:
        with trio.move_on_after(STORE_CLEANUP_S_MAX) as scope:
            scope.shield = True
            await store.delete([key])


async def _refuses(store: ObjectStore, key: ObjectKey) -> bool:
    # Each write sends different bytes: a retry treats an object with equal bytes as its own.
    first = await store.create(key, b"first")
    if not await _is_refused(store, key, None):
        return False
    second = await store.replace(key, b"second", first)
    return second != first and await _is_refused(store, key, first)


async def _is_refused(store: ObjectStore, key: ObjectKey, etag: ETag | None) -> bool:
    try:
        if etag is None:
            await store.create(key, b"taken")
        else:
            await store.replace(key, b"outdated", etag)
    except PreconditionError:
        return True
    return False
