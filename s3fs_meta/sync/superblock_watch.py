"""Maintaining the superblock during a mount: updating this host's copy, restoring lost objects.

Owns: when the superblock is updated and repaired. Does not know: which copy is used, how a copy is
written.
Keeps: only the lease holder restores a missing copy. Otherwise a removed filesystem could reappear.
Tasks: the background garbage collection, a flush by the user, the last flush of a mount.
"""

import logging
from contextlib import aclosing

from s3fs_meta.background_task import in_thread
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.sync.superblock.changes import change, put_back
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import Keys, open_keys
from s3fs_meta.sync.superblock.unlocking import HeldKeys
from s3fs_meta.sync.volume import Volume

_log = logging.getLogger(__name__)


async def retained_s(volume: Volume) -> int:
    """Return the current retention in seconds, which any host may have changed.

    The result is the longest retention of all copies, unless both objects in the bucket are
    identical and not older than this host's copy.

    Raises:
        The same errors as ``open_keys``.
    """
    keys = await _newest(volume)
    sure = not any(keys.faults) and not _was_exchanged(volume.superblock, keys.superblock)
    return max(keys.retention_s, 0 if sure else volume.superblock.retention_s)


async def tend(volume: Volume) -> None:
    """Restore missing copies in the bucket, and update this host's copy after a change.

    Raises:
        FencedError: another host has taken over the filesystem; no copy was restored.
        The same errors as ``open_keys`` and ``LeaseKeeper.require_hold``.
    """
    remembered = Remembered(volume.state_dir.path)
    present = superblock_codec.encode(volume.superblock)
    await in_thread(remembered.keep, present)
    keys = await _newest(volume)
    if any(keys.faults):
        await volume.keeper.require_hold()
        for line in await put_back(volume.store, keys):
            _log.warning("%s", line)
    for notice in keys.notices:
        _log.warning("%s", notice)
    if _was_exchanged(volume.superblock, keys.superblock):
        _log.warning(
            "the superblock in the bucket differs from this host's copy but has the same "
            "generation; this host continues to use its copy, but applies the longer retention"
        )
        return
    volume.known.accept(keys.superblock)
    await in_thread(remembered.keep, keys.data)


async def put_back_missing(volume: Volume) -> None:
    """Call ``tend`` if a listing shows that a superblock object is missing from the bucket."""
    wanted = {superblock_codec.KEY, superblock_codec.COPY_KEY}
    async with aclosing(volume.store.list(superblock_codec.KEY)) as listing:
        async for info in listing:
            wanted.discard(info.key)
            if not wanted:
                return
    await tend(volume)


async def protect_kept_points(volume: Volume) -> None:
    """Make older versions refuse the filesystem, because they would delete kept points' objects.

    Raises:
        The same errors as ``change``.
    """
    if superblock_codec.KEPT_POINTS in volume.superblock.features:
        return
    remembered = Remembered(volume.state_dir.path)
    changed = await change(volume.store, remembered, HeldKeys(volume.keyring), _with_feature)
    volume.known.accept(changed.superblock)
    for one in changed.unreached:
        _log.warning("cannot update a copy of the superblock: %s", one)


def _with_feature(superblock: Superblock, keyring: Keyring) -> Superblock:
    return superblock_codec.with_feature(superblock, keyring, superblock_codec.KEPT_POINTS)


def _was_exchanged(seen: Superblock, found: Superblock) -> bool:
    """Return whether another superblock replaced this one: equal generation, different fields."""
    return found.generation == seen.generation > 0 and found != seen


async def _newest(volume: Volume) -> Keys:
    remembered = Remembered(volume.state_dir.path)
    return await open_keys(volume.store, remembered, HeldKeys(volume.keyring), repairing=True)
