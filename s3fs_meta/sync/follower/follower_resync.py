"""Restoring a second database for a follower if changelogs alone do not reach the newest txg.

Owns: restoring the database, and copying this host's local state into it. Does not know: how a
mount switches to the database. Tasks: the follower's task; during a restore the mount serves its
current database.
Keeps: a new database is returned only after the last copies of damaged blocks were quarantined,
because the switch drops all cached blocks.
"""

from functools import partial
from pathlib import Path

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.bucket_errors import OlderBucketError
from s3fs_meta.cache.block_cache import BlockCache
from s3fs_meta.clock import Clock
from s3fs_meta.codec.image import ManifestRef
from s3fs_meta.codec.lease import Head
from s3fs_meta.disk_full import FULL_ERRNOS
from s3fs_meta.errors import DatabaseError, NoSpaceLeftError, UnfinishedFilesystemError
from s3fs_meta.limits import CLEANUP_S_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.wal import require_copied
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.tables import local_state
from s3fs_meta.state_paths import unfinished
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.follower.quarantine import quarantine
from s3fs_meta.sync.image.restore import Restorer, restoring
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.volume import Volume


async def restore_beside(
    volume: Volume,
    applier: Database,
    shown: Link,
    image: ManifestRef | None,
    cache: BlockCache,
    clock: Clock,
) -> tuple[Path, Link]:
    """Restore the bucket's newest txg into a new database; return its path and chain position.

    Args:
        volume: the volume of a follower.
        applier: the follower's second connection; it has the local state of this host.
        shown: the chain position of the txg that the mount shows.
        image: the image to start from; None: the newest image.
        cache: the cache of the mount; its clean blocks may be evicted to make room on the disk.
        clock: the clock for the time in the name of a quarantine directory.

    Raises:
        OlderBucketError: the last txg of the chain is before *shown*.
        StoreError, FormatError: the newest txg is unavailable; the new database was removed.
        NoSpaceLeftError, DatabaseError: the disk is full or failed; the new database was removed.
    """
    head = (await volume.keeper.read()).head
    if head is None:
        raise UnfinishedFilesystemError(volume.store.url)
    newest = image or head.manifest
    target = unfinished(volume.state_dir.tmp, "anew.db")
    await in_thread(image_copy.remove, target)
    path = restoring(target)
    restorer = Restorer(
        volume.store,
        volume.keyring,
        volume.uuid,
        no_progress,
        reserve=partial(_reserve, cache, path),
    )
    try:
        try:
            with cache.disk.holding(path, 0):
                link = await restorer.restore(newest, target)
        except OSError as exc:
            what = f"cannot restore the newest txg: {exc}"
            error = NoSpaceLeftError if exc.errno in FULL_ERRNOS else DatabaseError
            raise error(what) from exc
        _require_newer(link, shown, volume.store.url)
        await in_thread(_copy_position, target, applier, head if image is None else None)
        await quarantine(volume.state_dir, applier, target, cache, clock)
    except BaseException:
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            await in_thread_or_here(image_copy.remove, target)
        raise
    return target, link


async def _reserve(cache: BlockCache, path: Path, size_bytes: int) -> None:
    """Reserve disk space for the database of an image; evict clean blocks if that makes room.

    If even an empty cache would leave too little space, nothing is evicted: either the manifest is
    forged, and the restorer tries another image, or the restorer reports the full disk.

    Raises:
        NoSpaceLeftError: the disk has only its reserve left.
    """
    if size_bytes > cache.disk.unheld_bytes() + cache.index.evictable_bytes:
        return
    await cache.disk.make_room(size_bytes)
    cache.disk.hold_more(path, size_bytes)


def _require_newer(link: Link, shown: Link, url: str) -> None:
    if link.txg < shown.txg:
        raise OlderBucketError(url, shown.txg, f"the last txg in the bucket is {link.txg}")


def _copy_position(path: Path, applier: Database, head: Head | None) -> None:
    """Copy this host's rows of local state into a restored database. The call blocks."""
    db = Database.open(path, applier.pragmas)
    try:
        db.begin_local()
        local_state.take_over(db, applier)
        if head is not None:
            image_head.confirm(db, head, changed=False)
        db.commit()
    finally:
        db.close()
    require_copied(path)
