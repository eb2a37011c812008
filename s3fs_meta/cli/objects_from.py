"""fsck --objects-from: the restoration of objects from a copy of the bucket.

Metadata objects are restored before the filesystem is opened, because opening reads these objects.
Packs are restored afterwards, because rows of the metadata show which packs are missing.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from s3fs_meta.check.object_copies import ObjectCopies
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.errors import CorruptionError, NewerFormatError, ObjectMissingError, UsageError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.objects import urls
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync.host_state.replaced_objects import ReplacedObjects
from s3fs_meta.sync.host_state.state_dir import StateDir


class BucketCopy(NamedTuple):
    """The copy of the bucket from which objects are restored."""

    url: str
    s3: S3Options


class RestoredFilesystem(NamedTuple):
    """The filesystem whose objects are restored."""

    store: ObjectStore
    keyring: Keyring
    uuid: str
    state: Path  # the state directory, where replaced objects are kept


def url_of(text: str) -> str:
    """Return the URL of a copy of the bucket; an argument without a scheme is a directory."""
    return text if "://" in text else f"local://{Path(text).absolute()}"


def copy_of(text: str, options: S3Options) -> BucketCopy:
    """Return the copy that an argument names, with the options that its URL uses."""
    url = url_of(text)
    return BucketCopy(url, urls.options_of(url, options))


async def mend_metadata(
    source: BucketCopy, filesystem: RestoredFilesystem, *, lock_wait_s: float
) -> list[str]:
    """Restore metadata objects and kept points from copies; return a line for each of them.

    Raises:
        HeldError: another process uses the state directory.
        The errors of ``ObjectCopies.mend_metadata``.
    """
    state_dir = StateDir(filesystem.state)
    await state_dir.lock(wait_s=lock_wait_s)
    try:
        async with _repair(source, filesystem) as repair:
            await repair.mend_metadata(await _lease(filesystem.store))
            return repair.done
    finally:
        state_dir.unlock()


async def mend_packs(
    source: BucketCopy, filesystem: RestoredFilesystem, db: Database, *, deep: bool
) -> list[str]:
    """Restore packs from copies; return a line for each restored pack."""
    async with _repair(source, filesystem) as repair:
        await repair.mend_packs(db, deep=deep)
        return repair.done


@contextlib.asynccontextmanager
async def _repair(
    source: BucketCopy, filesystem: RestoredFilesystem
) -> AsyncIterator[ObjectCopies]:
    store = filesystem.store
    replaced = ReplacedObjects(store, filesystem.state, SystemClock())
    async with opened_store(source.url, source.s3, probe_only=True) as copies:
        if copies.url == store.url:
            raise UsageError(
                f"--objects-from={source.url} is the bucket to repair; give the URL of a copy of it"
            )
        yield ObjectCopies(store, copies, filesystem.keyring, filesystem.uuid, replaced)


async def _lease(store: ObjectStore) -> Lease | None:
    try:
        data = (await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
        return lease_codec.decode(lease_codec.KEY, data)
    except NewerFormatError:
        raise
    except (CorruptionError, ObjectMissingError):
        return None
