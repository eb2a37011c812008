"""A test whether a store honours conditional writes.

Some stores silently ignore the conditions; two hosts could then destroy a filesystem by writing
at once. Only trying shows it, so mkfs and mount try.
"""

from typing import Final

import trio

from s3fs_meta.errors import PreconditionError, UnexpectedStoreError
from s3fs_meta.limits import STORE_CLEANUP_S_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.contract import ETag, ObjectStore

PREFIX: Final = "probe/"
CONTENTS: Final = frozenset({b"first", b"second", b"taken", b"outdated"})  # left by a killed probe


async def probe(store: ObjectStore, nonce: str) -> bool:
    """Return whether *store* refuses a create of a taken key and a replace of an old version.

    Deletes its object ``probe/<nonce>``; only a killed probe leaves it behind.

    Args:
        store: any store; it gets a few requests.
        nonce: hexadecimal, never used before.

    Raises:
        StoreError: the store does not work at all.

    Schedule point: always.
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
    # Random bytes: a retry would treat equal bytes as its own write with a lost answer.
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
