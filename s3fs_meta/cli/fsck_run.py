"""One run of fsck, from opening the filesystem to closing it.

    mounted on this host  fsck reads the database while the daemon runs, and repairs nothing
    -n                    fsck opens the filesystem read-only, without acquiring the lease
    -p, -y                fsck opens the filesystem for writing, and uploads repairs

Owns: the choice between these three cases, and the repair of an unreadable local database.
Does not know: invariants, terminals.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from s3fs_meta.background_task import in_thread, in_thread_or_here
from s3fs_meta.bucket_errors import BrokenChainError
from s3fs_meta.check.from_packs import Rebuilt, rebuild
from s3fs_meta.check.report import Finding, Mode, Report, Severity, Verdict
from s3fs_meta.check.run import CacheDirectory, Examined, FsckOptions, check_filesystem
from s3fs_meta.cli import objects_from as objects_from_option
from s3fs_meta.cli.objects_from import BucketCopy, RestoredFilesystem
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock, superblock_facts
from s3fs_meta.console import interruption
from s3fs_meta.console.ui import Front
from s3fs_meta.errors import (
    ControlError,
    CorruptionError,
    DatabaseError,
    FormatError,
    HeldError,
    NewerFormatError,
    ObjectMissingError,
    S3fsError,
    UnfinishedFilesystemError,
    UsageError,
)
from s3fs_meta.limits import CLEANUP_S_MAX, CLOSE_S_MAX, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.local_disk import refuse_wal_on_network
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import image_copy
from s3fs_meta.meta.tables import local_state
from s3fs_meta.model import Epoch, Txg
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import request_status
from s3fs_meta.mount.stores import opened_store, with_options
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.objects.billing import Cause, part
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.state_paths import unfinished
from s3fs_meta.sync.chain import abandoned_txgs, chain
from s3fs_meta.sync.chain.abandoned_txgs import Mend
from s3fs_meta.sync.chain.head import is_image_wanted
from s3fs_meta.sync.history.points_in_time import described
from s3fs_meta.sync.host_state.replaced_objects import ReplacedObjects
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.image.restore import Restorer
from s3fs_meta.sync.lease import lease_proof
from s3fs_meta.sync.lease.keeper import refuse_held
from s3fs_meta.sync.lease.lease_repair import mend_lease
from s3fs_meta.sync.opening import failed_sync
from s3fs_meta.sync.opening.local_state_choice import (
    is_damage_of,
    is_settled,
    with_advice,
)
from s3fs_meta.sync.opening.opening import (
    close_filesystem,
    note_kept_lease,
    open_filesystem,
)
from s3fs_meta.sync.session import Session
from s3fs_meta.sync.store_clock import is_later
from s3fs_meta.sync.superblock.changes import accept_first, mend
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import Keys, open_keys, require_proof
from s3fs_meta.sync.superblock.unlocking import HeldKeys, Secret
from s3fs_meta.sync.upload.bounds import COMMAND_BOUNDS
from s3fs_meta.sync.volume import OpenOptions, Volume

_CLOSED: Final = "I0"
_NOT_UPLOADED: Final = "nothing was uploaded, because the database is damaged"
_LEASE_KEPT: Final = (
    "the lease is not released, so a mount without this local state needs --takeover"
)
_FUTURE: Final = "times"  # name of the check for wrong times, which has no invariant number


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The options for one fsck run."""

    place: Target
    s3: S3Options
    open: OpenOptions
    wanted: FsckOptions
    # Accept the superblock in the bucket even if this host has seen a newer one.
    accept_superblock: bool = False
    verbose: bool = False
    publish_local: bool = False  # upload the local state if its last txg is not in the bucket
    objects_from: BucketCopy | None = None
    end_at: Txg | None = None  # the last txg to keep; later txgs are abandoned


@part(Cause.FSCK)
async def run_check(plan: CheckPlan, secret: Secret, front: Front) -> Report:
    """Check a filesystem, and repair it if the plan demands repairs; return the report.

    Raises:
        HeldError: the filesystem is mounted, and either the plan demands repairs or the journal
            mode excludes other readers.
        CorruptionError: the metadata cannot be read, and the plan demands no repairs.
        S3fsError: the filesystem could not be checked.
    """
    report = Report(on_note=front.notice) if plan.verbose else Report()
    async with (
        interruption.cancelled_by_signals(),
        opened_store(
            plan.place.url, plan.s3, notify=front.notice, counts=plan.place.state
        ) as store,
    ):
        mounted = await _status_if_mounted(plan.place)
        if mounted is not None:
            _refuse_beside(plan, mounted["journal_mode"])
            front.notice("the filesystem is mounted: checking it while the mount runs")
            await check_beside(plan, store, secret, report, front)
        else:
            try:
                await _check_readable(plan, store, secret, report, front)
            except UnfinishedFilesystemError as exc:
                verdict = _note_closed(report, exc.message)
                verdict.left = 1
                verdict.advice = _advice_without_images(plan.place)
    return report


@part(Cause.FSCK)
async def run_rebuild(plan: CheckPlan, secret: Secret, front: Front) -> Rebuilt:
    """Rebuild metadata from the packs if no image and no local database is readable.

    Raises:
        UsageError: an image or the local database is readable; nothing was changed.
        HeldError: the filesystem is mounted on this host, or another host holds the lease and has
            all names in its local state.
    """
    state_dir = StateDir(plan.place.state)
    async with opened_store(
        plan.place.url, plan.s3, notify=front.notice, counts=plan.place.state
    ) as store:
        keys = await _keys(plan, store, secret, repairing=True)
        await require_proof(store, keys)
        superblock, keyring = keys.superblock, keys.keyring
        await state_dir.lock(wait_s=plan.open.lock_wait_s)
        try:
            state_dir.tmp.mkdir(mode=0o700, exist_ok=True)
            await _refuse_readable(plan, store, keyring, superblock, state_dir, front)
            await failed_sync.write_database_again(state_dir)
            await in_thread(_refuse_local, plan.place, superblock)
            for notice in await failed_sync.write_blocks_again(state_dir, None):
                front.notice(with_options(notice, plan.place.url, plan.s3, plan.place.state))
            await _refuse_held(plan, store, keyring, state_dir)
            quarantine = partial(_quarantine, plan, state_dir, front)
            clock = SystemClock()
            return await rebuild(
                store, keyring, superblock, state_dir.tmp, clock, front.progress, quarantine
            )
        finally:
            state_dir.unlock()


def _quarantine(plan: CheckPlan, state_dir: StateDir, front: Front) -> None:
    """Quarantine the rest of the local state, which may contain metadata that is not in packs."""
    if state_dir.database.exists() or state_dir.has_remains:
        kept = state_dir.quarantine_as(str(SystemClock().now_ns()))
        told = (
            f"the local state was quarantined in {kept}; s3fs-meta recover-state copies its files"
        )
        front.notice(with_options(told, plan.place.url, plan.s3, plan.place.state))


async def _refuse_readable(
    plan: CheckPlan,
    store: ObjectStore,
    keyring: Keyring,
    superblock: Superblock,
    state_dir: StateDir,
    front: Front,
) -> None:
    """Raise UsageError if an image can be restored, because a rebuild loses names."""
    target = unfinished(state_dir.tmp, "restorable.db")
    restorer = Restorer(store, keyring, superblock.uuid, front.progress)
    try:
        last_txg = (await restorer.restore(None, target)).txg
    except NewerFormatError as exc:
        if image_codec.parse_manifest_key(exc.key) is None:
            raise
        return  # the rebuild itself refuses an authentic image of a newer format
    except BrokenChainError as exc:
        last_txg = Txg(exc.last_txg)
    except (CorruptionError, ObjectMissingError, UnfinishedFilesystemError):
        return
    finally:
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            await in_thread_or_here(image_copy.remove, target)
    raise UsageError(
        f"the metadata of {plan.place.url} can be restored up to txg {last_txg}: mount the "
        f"filesystem, or run s3fs-meta fsck -y (with --end-at={last_txg} if its report says so). "
        "--rebuild loses names and is only for a bucket without a restorable image"
    )


def _advice_without_images(place: Target) -> str:
    if StateDir(place.state).database.exists():
        return "s3fs-meta fsck -y --publish-local uploads the local state of this host"
    return (
        "s3fs-meta fsck -y --publish-local on a host that has mounted the filesystem uploads the"
        " local state of that host; s3fs-meta fsck --rebuild makes new metadata from packs and intact"
        " pieces of an image"
    )


def _refuse_local(place: Target, superblock: Superblock) -> None:
    """Refuse a rebuild, which loses names, if the local state has all names.

    Raises:
        UsageError: the local database can be opened.
    """
    state_dir = StateDir(place.state)
    if not state_dir.database.exists():
        return
    try:
        db = Database.open(state_dir.database, _pragmas(place.state), repairing=True)
    except NewerFormatError:
        raise
    except CorruptionError:
        return
    try:
        known = local_state.get(db, "uuid")
    finally:
        db.close()
    if known in {None, superblock.uuid}:
        raise UsageError(
            f"the local state in {state_dir.path} still has the names of all files, which --rebuild"
            " would lose. Upload it with s3fs-meta fsck -y, with --publish-local if fsck asks. To"
            f" rebuild anyway, first move {state_dir.path} away"
        )


async def _refuse_held(
    plan: CheckPlan, store: ObjectStore, keyring: Keyring, state_dir: StateDir
) -> None:
    """Refuse a rebuild while another host holds the lease, unless --takeover was given.

    Raises:
        HeldError: another host holds the lease.
        NewerFormatError: a newer program wrote the lease.
    """
    try:
        data = (await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)).data
        lease = lease_codec.decode(lease_codec.KEY, data)
    except NewerFormatError:
        raise
    except (CorruptionError, ObjectMissingError):
        return
    held = lease_proof.known(None, state_dir, keyring, doubtful=True)
    refuse_held(lease, held, force=plan.open.force_takeover)


async def _status_if_mounted(place: Target) -> Mapping[str, Any] | None:
    if not place.state.exists() or not StateDir(place.state).is_locked_by_other:
        return None
    try:
        return await request_status(place)
    except (NotMountedError, ControlError):
        return None  # an exiting process or another fsck has the lock; opening waits for the lock


def _refuse_beside(plan: CheckPlan, journal_mode: str) -> None:
    """Refuse a check that is not possible while the filesystem is mounted.

    Raises:
        HeldError: the plan demands repairs, or the journal mode excludes other readers.
    """
    if plan.wanted.repair is not Mode.REPORT:
        raise HeldError(
            f"the filesystem {plan.place.url} is mounted on this host; unmount it before repairs"
        )
    if not Pragmas(journal_mode=journal_mode).is_wal:
        raise HeldError(
            f"the filesystem {plan.place.url} is mounted on this host with journal_mode="
            f"{journal_mode}, which excludes other readers; unmount it before the check"
        )


def _pragmas(state: Path) -> Pragmas:
    """Return the default pragmas; on a network filesystem, pragmas without WAL."""
    try:
        refuse_wal_on_network(state)
    except UsageError:
        return Pragmas(journal_mode="truncate")
    return Pragmas()


async def _check(examined: Examined, plan: CheckPlan, report: Report, front: Front) -> None:
    """Check the filesystem; a signal can interrupt the parts that block the event loop."""
    during, clock = interruption.interruptible, SystemClock()
    await check_filesystem(examined, plan.wanted, report, clock, front.progress, blocking=during)


async def check_beside(
    plan: CheckPlan,
    store: ObjectStore,
    secret: Secret,
    report: Report,
    front: Front,
) -> None:
    """Check the bucket and the database of a running mount, without repairs."""
    keys = await _keys(plan, store, secret)
    for notice in keys.notices:
        report.remember(notice)
    path = StateDir(plan.place.state).database
    db = Database.open(path, Pragmas(), read_only=True, repairing=True)
    try:
        if db.is_former:
            raise HeldError(
                f"the filesystem {plan.place.url} is mounted on this host by an older s3fs-meta,"
                " whose tables cannot be checked while it runs; unmount it before the check"
            )
        facts = superblock_facts(keys.superblock)
        examined = Examined(db, store, keys.keyring, mounted=True, facts=facts)
        await _check(examined, plan, report, front)
    finally:
        db.close()


async def _check_readable(
    plan: CheckPlan,
    store: ObjectStore,
    secret: Secret,
    report: Report,
    front: Front,
) -> None:
    """Check the filesystem; with -y, replace an unreadable local database with a restored one.

    If the database proves unreadable during the check, the check starts again.
    """
    state_dir = StateDir(plan.place.state)
    try:
        await _check_alone(plan, store, secret, report, front)
    except FormatError as exc:
        if not is_damage_of(exc, state_dir):
            raise
        if plan.wanted.repair is not Mode.ALL:
            raise with_advice(exc) from exc
        await state_dir.lock(wait_s=plan.open.lock_wait_s)
        try:
            await failed_sync.write_blocks_again(state_dir, None)
            stamp = str(SystemClock().now_ns())
            kept = await in_thread(state_dir.quarantine_as, stamp)
        finally:
            state_dir.unlock()
        report.forget_all_but(_CLOSED)
        _note_closed(
            report,
            f"{exc.message}; the local state was quarantined in {kept} and restored from the "
            "bucket",
        )
    else:
        return
    await _check_alone(plan, store, secret, report, front)


async def _check_alone(
    plan: CheckPlan,
    store: ObjectStore,
    secret: Secret,
    report: Report,
    front: Front,
) -> None:
    repairs = plan.wanted.repair is not Mode.REPORT
    volume = await _open(plan, store, secret, report, front)
    if volume.mended:
        _note_closed(report, *volume.mended)
    release = is_checked = False
    try:
        await _note_superblock(volume, report)
        future = _note_future(volume, report)
        for notice in volume.notices:
            # Notices about superblock faults are left out, because the report lists these faults.
            if notice not in volume.superblock_faults:
                report.remember(notice)
        state_dir = volume.state_dir
        cache = CacheDirectory(state_dir.blocks, state_dir.tmp)
        facts = superblock_facts(volume.superblock)
        lease = volume.keeper.lease
        epoch = Epoch(lease.epoch + 1) if lease.released else lease.epoch
        examined = Examined(volume.db, store, volume.keyring, cache, epoch=epoch, facts=facts)
        if plan.objects_from is not None:
            source, uuid = plan.objects_from, volume.uuid
            filesystem = RestoredFilesystem(store, volume.keyring, uuid, state_dir.path)
            deep = plan.wanted.deep
            lines = await objects_from_option.mend_packs(source, filesystem, volume.db, deep=deep)
            _note_closed(report, *lines)
        await _check(examined, plan, report, front)
        is_checked = True
        if repairs:
            release = await _upload(plan, volume, report, front)
            if future is not None and _span_was_begun(volume):
                future.left = 0
    except BaseException:
        # Report only the first error. Release the lease if there is nothing to upload.
        with (
            trio.move_on_after(CLEANUP_S_MAX, shield=True),
            contextlib.suppress(S3fsError, OSError),
        ):
            if not is_checked:
                volume.db.rollback()  # a second signal may have prevented the rollback of repairs
            await _close(volume, release=repairs and _needs_no_lease(volume, report))
        raise
    with trio.move_on_after(CLOSE_S_MAX, shield=True):
        await _close(volume, release=release)


async def _open(
    plan: CheckPlan,
    store: ObjectStore,
    secret: Secret,
    report: Report,
    front: Front,
) -> Volume:
    """Open the filesystem for the check; with -y, first repair faults that prevent opening."""
    options = replace(
        plan.open,
        read_only=plan.wanted.repair is Mode.REPORT,
        repairing=True,
        mend=Mend(plan.end_at, publish_local=plan.publish_local)
        if plan.wanted.repair is Mode.ALL
        else None,
        accept_superblock=plan.accept_superblock,
        pragmas=_pragmas(plan.place.state),
    )
    state_dir = StateDir(plan.place.state)
    clock = SystemClock()
    if plan.wanted.repair is Mode.ALL:
        keys = await _mend_superblock(plan, store, secret, report)
        if plan.objects_from is not None:
            lines = await objects_from_option.mend_metadata(
                plan.objects_from,
                RestoredFilesystem(store, keys.keyring, keys.superblock.uuid, plan.place.state),
                lock_wait_s=plan.open.lock_wait_s,
            )
            _note_closed(report, *lines)
        needs_image = not plan.publish_local
        why = await mend_lease(store, keys.keyring, clock, needs_image=needs_image)
        if why is not None:
            _note_closed(report, f"the lease: {why}")
    return await open_filesystem(store, state_dir, secret, clock, options, front.progress)


async def _keys(
    plan: CheckPlan, store: ObjectStore, secret: Secret, *, repairing: bool = False
) -> Keys:
    remembered = Remembered(plan.place.state)
    return await open_keys(store, remembered, secret, repairing=repairing)


async def _mend_superblock(
    plan: CheckPlan, store: ObjectStore, secret: Secret, report: Report
) -> Keys:
    """Replace each copy of the superblock that is missing, damaged or older than the newest one."""
    remembered = Remembered(plan.place.state)
    if plan.accept_superblock:
        accepted = await accept_first(store, remembered, secret)
        generation = accepted.superblock.generation
        report.remember(f"the superblock in the bucket was accepted: generation {generation}")
    keys = await _keys(plan, store, secret, repairing=True)
    replaced = ReplacedObjects(store, plan.place.state, SystemClock())
    for line in await mend(store, replaced, keys):
        _note_closed(report, line)
    return keys


async def _note_superblock(volume: Volume, report: Report) -> None:
    """Report copies of the superblock that were invalid at opening, or are still invalid."""
    if not volume.superblock_faults:
        return
    remembered, held = Remembered(volume.state_dir.path), HeldKeys(volume.keyring)
    left = (await open_keys(volume.store, remembered, held, repairing=True)).notices
    for fault in volume.superblock_faults:
        _note_closed(report, fault).left = len(left)


def _note_future(volume: Volume, report: Report) -> Verdict | None:
    """Report a last txg with a time in the future, if the clocks of host and store agree."""
    if volume.clock.difference or not is_later(volume.link.created_ns, volume.clock.now_ns()):
        return None
    verdict = report.open(Verdict(_FUTURE, "no txg has a time in the future", Severity.DAMAGE))
    text = (
        f"{described(volume.link)}: a host with a wrong clock wrote it; -y begins a new time span"
    )
    report.add(verdict, Finding(_FUTURE, text))
    return verdict


def _span_was_begun(volume: Volume) -> bool:
    link = chain.recorded(volume.db)
    return link is not None and link.created_ns < volume.link.created_ns


def _note_closed(report: Report, *findings: str) -> Verdict:
    """Report why the filesystem cannot be opened; the caller may change the returned verdict."""
    verdict = report.open(Verdict(_CLOSED, "the filesystem can be opened", Severity.DAMAGE))
    for finding in findings:
        report.add(verdict, Finding(_CLOSED, finding))
    verdict.left = 0
    return verdict


async def _upload(plan: CheckPlan, volume: Volume, report: Report, front: Front) -> bool:
    """Upload the repairs, unless they were undone; return whether the lease can be released."""
    opening_faults = {_CLOSED, _FUTURE}.intersection(report.broken)
    repaired = report.changes_rows or bool(opening_faults)
    as_image = repaired or volume.crashed or plan.publish_local
    if report.is_undone and (as_image or is_image_wanted(volume.db)):
        release = _needs_no_lease(volume, report)
        report.remember(_NOT_UPLOADED if release else f"{_NOT_UPLOADED}; {_LEASE_KEPT}")
        return release
    return await _carry(volume, front, as_image=as_image)


async def _carry(volume: Volume, front: Front, *, as_image: bool) -> bool:
    """Upload the repairs; return whether all changes were uploaded.

    Args:
        volume: the checked filesystem.
        front: receives the progress.
        as_image: True to publish an image as the next txg. The history cannot list the changes in
            such an image. False to ship the changes of this host, as an unmount does.
    """
    session = Session(volume, SessionOptions(), SystemClock(), bounds=COMMAND_BOUNDS)
    session.recover()
    if as_image:
        await session.publish_as_txg(front.progress)  # the report already lists lost data
    else:
        await session.flush_at_end(front.progress)
    if volume.position.link.created_ns < volume.link.created_ns:
        front.notice(
            "earlier txgs have later times, from a wrong clock; a new time span begins with"
            f" {described(volume.position.link)}"
        )
    return not session.db.changed and not session.uploader.pending


def _needs_no_lease(volume: Volume, report: Report) -> bool:
    """Return whether the bucket has all changes of this host.

    After a crash, all rows count as changed. But the crashed process had nothing to upload if no
    host held the lease before this run, and the lease was not lost. The process was a read-only
    mount, or it released the lease after an error.
    """
    db = volume.db
    was_released = volume.keeper.has_replaced_released and _CLOSED not in report.broken
    changed = report.changes_rows if volume.crashed and was_released else db.changed
    try:
        return not changed and abandoned_txgs.wanted(db) is None and is_settled(db)
    except (CorruptionError, DatabaseError):
        return False


async def _close(volume: Volume, *, release: bool) -> None:
    """Close the filesystem; keep the mark of an unclean shutdown for the next mount."""
    if volume.keeper.is_held and not release:
        note_kept_lease()
    if not volume.crashed:
        await close_filesystem(volume, release=release)
        return
    try:
        if volume.keeper.is_held and release:
            await volume.keeper.release()
        await in_thread_or_here(volume.db.sync_wal)
    finally:
        volume.db.close()
        volume.state_dir.unlock()
