"""Opening a filesystem for a mount, and changing the page size of its database on request.

Owns: the steps for another page size: open, close, rewrite, open again. The first opening selects
the database, and only a closed database can be rewritten.
Does not know: how a database is rewritten (``meta.offline.page_size``).
"""

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from s3fs_meta.background_task import in_thread, is_orderly
from s3fs_meta.clock import Clock
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.console.ui import Front
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.offline.page_size import change_page_size
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.plan import MountPlan
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.history.snapshot_mount import RestoreOptions, open_snapshot, read_bucket
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.opening.hole_healing import heal_holes
from s3fs_meta.sync.opening.offline import why_unreachable
from s3fs_meta.sync.opening.opening import (
    can_give_back,
    close_filesystem,
    let_go,
    open_filesystem,
    release_after_error,
)
from s3fs_meta.sync.superblock.changes import change
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.unlocking import HeldKeys, Secret
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)

_INODES_OF_MKFS: Final = 1  # a new filesystem has only the root directory


async def open_for_mount(
    plan: MountPlan,
    store: ObjectStore,
    secret: Secret,
    clock: Clock,
    front: Front,
) -> Volume:
    """Open the filesystem of a plan.

    Args:
        plan: the plan of the mount.
        store: the bucket of the filesystem.
        secret: opens the superblock.
        clock: supplies the times in the lease.
        front: shows notices and progress.

    Raises:
        UsageError, DatabaseError: the page size could not be changed; all files are unchanged.
        The same errors as ``open_filesystem``.
    """
    state_dir = StateDir(plan.place.state)

    async def open_it() -> Volume:
        opened = await open_filesystem(store, state_dir, secret, clock, plan.open, front.progress)
        return opened if plan.open.read_only else await _healed(opened)

    if plan.options.at is not None:
        present = targets.of_url(plan.place.url, plan.options.cachedir)
        bucket = await read_bucket(store, Remembered(present.state), secret, clock)
        how = RestoreOptions(front.progress)
        return await open_snapshot(bucket, state_dir, plan.open, plan.options.at, how)
    was_here = state_dir.database.exists()
    volume = await open_it()
    inodes = volume.db.counters.inodes
    if not was_here and inodes > _INODES_OF_MKFS:
        front.notice(f"restored the metadata of {inodes} files and directories from the bucket")
    wanted = plan.options.page_size
    if wanted is None or page_size_of(volume.db) == wanted:
        return volume
    if volume.crashed:
        later = "page_size changes at the next mount, because the last shutdown was unclean"
        return replace(volume, notices=(*volume.notices, later))
    front.notice(
        f"changing the page size of the database from {page_size_of(volume.db)} to {wanted} bytes"
    )
    await _change_page_size(volume, plan, wanted)
    volume = await open_it()
    async with _closing_after_error(volume):
        unreached = await _announce_superblock(volume, wanted)
    return replace(volume, notices=(*volume.notices, *unreached))


async def _change_page_size(volume: Volume, plan: MountPlan, wanted: int) -> None:
    """Close a volume, and change the page size of its database.

    The lease is released if no host held it before the filesystem was opened. It then stays free
    even if the page size cannot be changed, or the filesystem cannot be opened again.

    Raises:
        HeldError: another process on this host has begun to use the filesystem.
        UsageError, DatabaseError, OSError: the page size could not be changed.
        StoreError: the lease could not be released.
    """
    is_as_found = can_give_back(volume.keeper, volume.db, volume.keyring)
    async with _closing_after_error(volume):
        volume.db.begin_local()
        image_head.want_image(volume.db)
    await close_filesystem(volume, release=is_as_found)
    await volume.state_dir.lock(wait_s=plan.open.lock_wait_s)
    try:
        await in_thread(change_page_size, volume.state_dir.database, wanted)
    finally:
        volume.state_dir.unlock()


async def _healed(volume: Volume) -> Volume:
    """Restore the old content of holes that fsck made; close the volume after an error."""
    async with _closing_after_error(volume):
        healed = await heal_holes(volume)
    return replace(volume, notices=(*volume.notices, *healed))


@contextlib.asynccontextmanager
async def _closing_after_error(volume: Volume) -> AsyncIterator[None]:
    """Close a volume if the with-block fails; release a lease that no host held before."""
    try:
        yield
    except BaseException as exc:
        try:
            if is_orderly(exc) and can_give_back(volume.keeper, volume.db, volume.keyring):
                await release_after_error(volume.keeper)  # noqa: ASYNC102 - shields itself
        finally:
            volume.db.close()
            let_go(volume)
        raise


def may_be_offline(plan: MountPlan) -> bool:
    """Return whether a mount can start from local state if the bucket is unavailable.

    The mount must be read-only, and local state must exist. A follower that starts without the
    bucket applies new txgs as soon as the bucket responds.
    """
    only_reads = plan.open.read_only and plan.options.at is None
    return only_reads and StateDir(plan.place.state).database.exists()


async def why_offline(plan: MountPlan, store: ObjectStore) -> str:
    """Return the reason why a mount must start without the bucket, or "" if it is available."""
    return await why_unreachable(store) if may_be_offline(plan) else ""


def page_size_of(db: Database) -> int:
    """Return the page size of a database."""
    row = db.one("PRAGMA page_size")
    assert row is not None, "this pragma always returns a row"
    return int(row[0])


async def _announce_superblock(volume: Volume, page_size: int) -> list[str]:
    """Record the page size in the superblock, where ``status`` reads it; return notices."""

    def amend(present: Superblock, keyring: Keyring) -> Superblock:
        return superblock_codec.amend(present, keyring, page_size=page_size)

    remembered = Remembered(volume.state_dir.path)
    changed = await change(volume.store, remembered, HeldKeys(volume.keyring), amend)
    volume.known.accept(changed.superblock)
    return [f"the new page size was not written to {one}" for one in changed.unreached]
