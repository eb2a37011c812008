"""Opening the store of a command and closing it again."""

import contextlib
from collections.abc import AsyncIterator

import trio

from s3fs_meta.objects import urls
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.urls import S3Options

_CLOSE_S_MAX = 10.0


@contextlib.asynccontextmanager
async def opened_store(
    url: str, options: S3Options, *, make_root: bool = False, look_only: bool = False
) -> AsyncIterator[ObjectStore]:
    """Give the store at *url*.

    Raises:
        UsageError: the URL is wrong, or the directory does not exist.

    Schedule point: always.  Locks: takes none.
    """
    store = urls.open_store(url, options, make_root=make_root, look_only=look_only)
    try:
        yield store
    finally:
        with trio.move_on_after(_CLOSE_S_MAX, shield=True):
            await store.close()
