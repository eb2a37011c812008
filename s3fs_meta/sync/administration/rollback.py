"""Rollback: publishing a past txg as a new txg, so that a second rollback can undo it.

Owns: the order of the steps: ship all changes, restore the past txg to a second database, publish
that state as a new txg, exchange the databases.
Does not know: how the user selects the point in time, its callers.
Keeps: one new object, the changelog of the new txg, makes the rollback effective on all hosts.
If the program crashes after that object was created but before the databases were exchanged, the
next mount restores the new txg as if another host had written it.
Design: docs/design/durability.md, "Rollback".
"""

import shutil
from collections.abc import Collection
from contextlib import aclosing
from dataclasses import replace
from typing import NamedTuple

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.counted import counted
from s3fs_meta.errors import FormatError, LostBlockError, SettingsError
from s3fs_meta.limits import CLEANUP_S_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.local_disk import sync_directory
from s3fs_meta.meta.db.wal import require_copied
from s3fs_meta.meta.offline import rollback as rollback_rows
from s3fs_meta.meta.tables import cached_blocks, local_state, pending
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.history.kept.kept_points import KeptPointReader
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.opening.opening import let_go, mark_clean
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.upload.bounds import COMMAND_BOUNDS
from s3fs_meta.sync.volume import Position, Volume


class RolledBack(NamedTuple):
    """The result of a rollback: the chain positions before and after it, and notices."""

    before: Link  # position before the rollback; rolling back to it restores the old state
    now: Link
    notices: list[str]  # notices to show to the user, one line each


async def roll_back(
    volume: Volume,
    past: Link,
    clock: Clock,
    progress: Progress = no_progress,
    hook: Hook = no_hook,
) -> RolledBack:
    """Publish the state of a past txg as a new txg; close the filesystem, even after an error.

    Args:
        volume: a volume opened for writing that no other task uses.
        past: the chain position of the past txg.
        clock: the clock for the time of the new txg.
        progress: called with the progress of each step.
        hook: called with the name of each finished step.

    Raises:
        SettingsError: the past txg is no longer retained; pending changes were shipped.
        FencedError: another host has taken over the filesystem.
        StoreError, FormatError: an object is unavailable or damaged. If the store failed in the
            last step, the next mount detects whether the rollback happened.
        DatabaseError: the local disk failed or is full. The next mount detects whether the
            rollback happened.
    """
    session = Session(volume, SessionOptions(), clock, hook, bounds=COMMAND_BOUNDS)
    notices: list[str] = []
    stamp = ""  # time in the name of the quarantine directory; "" if no state is quarantined
    published: Session | None = None
    try:
        session.recover()
        why = await _ship(session, progress)
        if why:
            stamp = str(clock.now_ns())
            kept = volume.state_dir.quarantine(stamp)
            notices.append(f"{why}; the state before the rollback is quarantined in {kept}")
        before = volume.position.link
        await _require_kept(volume, past, before)
        beside = StateDir(volume.state_dir.rollback)
        notices += await _restore_beside(volume, past, before, beside, progress)
        hook("past restored")
        published = await _open_beside(volume, before, beside, clock, hook)
        await _note_next_txgs(session, before)
        await published.publish_as_txg(progress)
        now = published.volume.position.link
        hook("past published")
        await published.close()
        published = None
        require_copied(beside.database)
    except BaseException:
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            if published is not None:
                published.db.close()
            shutil.rmtree(volume.state_dir.rollback, ignore_errors=True)
            await session.close()
        raise
    try:
        await _end(session, is_kept=bool(stamp))
        await in_thread_or_here(_exchange, volume.state_dir, beside, stamp, hook)
    finally:
        let_go(volume)
    return RolledBack(before, now, notices)


async def _ship(session: Session, progress: Progress) -> str:
    """Ship all changes; return the reason why the bucket may lack blocks, or "" if it has all."""
    try:
        await session.flush_at_end(progress)
    except LostBlockError as exc:
        return exc.message
    if cached_blocks.are_marked(session.db, session.db):
        return "this host has cached copies of packs that are damaged in the bucket"
    return ""


async def _require_kept(volume: Volume, past: Link, before: Link) -> None:
    """Raise SettingsError if the past txg is below the retention floor and not a kept point."""
    if past.txg >= before.floor:
        return
    kept = await KeptPointReader(volume.store, volume.keyring, volume.uuid).all()
    if (past.txg, past.hash) not in {(point.txg, point.hash) for point in kept.points}:
        raise SettingsError(
            f"txg {past.txg} is no longer retained, so no rollback to it is possible"
        )


async def _restore_beside(
    volume: Volume, past: Link, before: Link, beside: StateDir, progress: Progress
) -> list[str]:
    """Restore the past txg's database and prepare it to become the next txg; return notices."""
    head = volume.keeper.lease.head
    newest = head and head.manifest
    restorer = Restorer(volume.store, volume.keyring, volume.uuid, progress)
    restored = await restorer.restore(newest, beside.database, upto=past.txg)
    if restored.hash != past.hash:
        raise FormatError(
            changelog_codec.key_of(past.txg),
            "the restored chain has another hash for this changelog than the point in time;"
            " nothing was changed; try again, and if this error recurs, run s3fs-meta fsck -n",
        )
    strays = await _strays(volume, beside)
    lost = await in_thread(_take_over, beside, volume, before, strays)
    if lost:
        restorer.notices.append(
            f"{counted(lost, 'block')} of this point in time cannot be read: the bucket has no"
            " intact copy; fsck --deep lists the files"
        )
    return restorer.notices


async def _strays(volume: Volume, beside: StateDir) -> set[ObjectKey]:
    """Return the packs of the past txg that are in the bucket but have no row in the current state.

    The rows are missing if the current state belongs to another history than the past txg.
    """
    found: set[ObjectKey] = set()
    for key, object_bytes in await in_thread(_unlisted, beside, volume):
        async with aclosing(volume.store.list(key)) as listing:
            async for info in listing:
                if (info.key, info.size_bytes) == (key, object_bytes):
                    found.add(key)
    return found


def _unlisted(beside: StateDir, volume: Volume) -> list[tuple[ObjectKey, int]]:
    past = Database.open(beside.database, volume.db.pragmas)
    try:
        return rollback_rows.unlisted(past, volume.db)
    finally:
        past.close()


def _take_over(
    beside: StateDir, volume: Volume, before: Link, strays: Collection[ObjectKey]
) -> int:
    """Copy the rows that a rollback keeps to the restored database; count lost blocks."""
    past = Database.open(beside.database, volume.db.pragmas)
    try:
        lost = rollback_rows.take_over(past, volume.db, strays)
        past.begin_local()
        local_state.take_over(past, volume.db)
        chain.record(past, before)
        chain.want_floor(past, chain.wanted_floor(volume.db, before))
        pending.raise_block_floor(past)
        past.commit()
        return lost
    finally:
        past.close()


async def _open_beside(
    volume: Volume, before: Link, beside: StateDir, clock: Clock, hook: Hook
) -> Session:
    """Return a session with the restored database and the lease of *volume*."""
    db = await in_thread(Database.open, beside.database, volume.db.pragmas)
    db.counters.begin_txg(before.next_txg)
    past = replace(
        volume,
        db=db,
        state_dir=beside,
        recorder=ChangeRecorder(db, clock.now_ns),
        position=Position(before),
        crashed=False,
        power_lost=False,
        notices=(),
    )
    session = Session(past, SessionOptions(), clock, hook, bounds=COMMAND_BOUNDS)
    session.recover()
    return session


async def _note_next_txgs(session: Session, before: Link) -> None:
    """Record in the current database which txgs the rollback is about to write.

    Otherwise, if the rollback crashed, the next mount would take this state directory for a copy
    of the directory that wrote these txgs. The rollback writes a txg with an image, and perhaps
    before it a txg with block locations.
    """
    session.db.begin_local()
    chain.note_own(session.db, Txg(before.txg + 2))
    session.db.commit_durable()
    await in_thread(session.db.sync_wal)


async def _end(session: Session, *, is_kept: bool) -> None:
    """Close the current database; if it will be quarantined, first mark it clean.

    Without the mark, ``recover-state`` would distrust the content after the next reboot.

    Raises:
        OSError, DatabaseError: the disk failed; the database is closed.
    """
    try:
        if is_kept:
            await in_thread_or_here(session.files.sync_everything)
            await session.durability.sync()
            await mark_clean(session.db)
    finally:
        session.db.close()


def _exchange(state_dir: StateDir, beside: StateDir, stamp: str, hook: Hook) -> None:
    """Replace the current database with the restored one. The call blocks.

    After a crash before the last rename, the next mount restores the database from the bucket.

    Args:
        stamp: part of the name of the quarantine directory for the current database; "": drop the
            database, because the bucket has all of its data.
    """
    if stamp:  # some data in the current state is not in the bucket
        state_dir.quarantine_as(stamp)
    else:
        state_dir.drop_contents()
    hook("present dropped")
    beside.database.rename(state_dir.database)
    sync_directory(state_dir.path)
    shutil.rmtree(beside.path, ignore_errors=True)
    hook("past in place")
