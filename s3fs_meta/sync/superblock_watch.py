"""What a mount does for the superblock while it runs: it remembers, and puts back what is missing.

Owns: when that may be done. Does not know: which copy counts, how one is written.
Keeps: only the host that holds the lease puts anything back, so nothing comes back that was removed.
Tasks: the background reclaim, a flush that was asked for, and the last flush of a mount.
"""

import logging
from contextlib import aclosing

import trio

from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.sync.superblock.changes import put_back
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import Keys, open_keys
from s3fs_meta.sync.superblock.unlocking import HeldKeys
from s3fs_meta.sync.volume import Opened

_log = logging.getLogger(__name__)


async def retained_s(opened: Opened) -> int:
    """Return how far back moments can be had; any host may have changed it.

    It is the longest retention of those that are seen, unless both objects in the bucket agree, and
    are what this host has seen or of a later generation.
    Nothing is written.

    Raises:
        As ``open_keys``.
    """
    keys = await _newest(opened)
    sure = not any(keys.faults) and not _was_exchanged(opened.superblock, keys.superblock)
    return max(keys.retention_s, 0 if sure else opened.superblock.retention_s)


async def tend(opened: Opened) -> None:
    """Put back what is missing in the bucket, and remember on this host what changed.

    Raises:
        FencedError: another host has taken the filesystem over; nothing was put back.
        As ``open_keys``; nothing was put back.
    """
    remembered = Remembered(opened.state_dir.path)
    present = superblock_codec.encode(opened.superblock)
    await trio.to_thread.run_sync(remembered.keep, present)
    keys = await _newest(opened)
    if any(keys.faults):
        await opened.keeper.require_hold()
        for line in await put_back(opened.store, keys):
            _log.warning("%s", line)
    for notice in keys.notices:
        _log.warning("%s", notice)
    if _was_exchanged(opened.superblock, keys.superblock):
        _log.warning(
            "the superblock in the bucket is another of the same generation; this host "
            "goes on with the one that it has seen, and keeps the longer retention"
        )
        return
    opened.superblock = keys.superblock
    await trio.to_thread.run_sync(remembered.keep, keys.data)


async def put_back_missing(opened: Opened) -> None:
    """As ``tend``, if a listing lacks one of the two objects: one request where all is well."""
    wanted = {superblock_codec.KEY, superblock_codec.COPY_KEY}
    async with aclosing(opened.store.list(superblock_codec.KEY)) as listing:
        async for info in listing:
            wanted.discard(info.key)
            if not wanted:
                return
    await tend(opened)


def _was_exchanged(seen: Superblock, found: Superblock) -> bool:
    """Return whether one has taken the place of another without a change, which has a generation."""
    return found.generation == seen.generation > 0 and found != seen


async def _newest(opened: Opened) -> Keys:
    remembered = Remembered(opened.state_dir.path)
    return await open_keys(opened.store, remembered, HeldKeys(opened.keyring), repairing=True)
