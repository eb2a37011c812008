"""From a URL to a filesystem that can be used here: keys, lock, which copy counts, the lease.

Owns: the decision between local state and bucket. Does not know: FUSE, the cache's inner life.

    local state   bucket's head is        decision
    none          anything                restore it
    any           ours, or our attempt    go on from local state
    unchanged     another                 drop local state, restore
    changed       another                 set local state aside, say where, restore

Design: docs/design/durability.md, "At mount".
"""

import logging
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import trio

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.cache.copies import restore_copies
from s3fs_meta.clock import Clock
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import (
    HeldError,
    NotAFilesystemError,
    ObjectMissingError,
    SettingsError,
    UnconditionalStoreError,
    UnfinishedFilesystemError,
)
from s3fs_meta.meta import cached, local_state
from s3fs_meta.meta.database import Database
from s3fs_meta.meta.pragmas import Pragmas
from s3fs_meta.model import BlockState
from s3fs_meta.objects import probe
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync import heads
from s3fs_meta.sync.lease import LeaseKeeper, describe_holder
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.restore import restore_image
from s3fs_meta.sync.state_dir import StateDir

_log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How to open a filesystem."""

    pragmas: Pragmas = field(default_factory=Pragmas)
    read_only: bool = False
    repairing: bool = False  # fsck: open what a mount would refuse
    force_takeover: bool = False
    unsafe_single_writer: bool = False
    lock_wait_s: float = 0.0


@dataclass(slots=True)
class Opened:
    """A filesystem open on this host: the state directory is locked, the database open."""

    store: ObjectStore
    superblock: Superblock
    keyring: Keyring
    state_dir: StateDir
    db: Database
    keeper: LeaseKeeper
    read_only: bool
    crashed: bool  # the last mount here did not end cleanly
    power_lost: bool  # and this is another boot of the machine
    notices: list[str]  # one-line facts that the user must hear


class _Local(NamedTuple):
    """What is here of a filesystem."""

    db: Database | None
    holder: str | None  # under which name it held the lease
    doubtful: bool  # the last run ended in a way that its settings do not survive


async def load_superblock(store: ObjectStore) -> Superblock:
    """Read the superblock.

    Raises:
        NotAFilesystemError: there is none.
    """
    try:
        fetched = await store.get(superblock_codec.KEY)
    except ObjectMissingError as exc:
        raise NotAFilesystemError(store.url) from exc
    return superblock_codec.decode(superblock_codec.KEY, fetched.data)


async def unlock(superblock: Superblock, passphrase: Callable[[], bytes]) -> Keyring:
    """Return the keys; *passphrase* is asked only for an encrypted filesystem.

    Raises:
        PassphraseError: it is not the right one.
    """
    if not superblock.encrypted:
        return superblock_codec.unlock_plain(superblock)
    secret = passphrase()
    return await trio.to_thread.run_sync(superblock_codec.unlock, superblock, secret)


async def require_conditions(store: ObjectStore, *, unsafe_allowed: bool) -> bool:
    """Return whether the store honours conditional writes.

    Raises:
        UnconditionalStoreError: it does not, and the user did not accept that.
    """
    if await probe.probe(store, uuid.uuid4().hex):
        return True
    if not unsafe_allowed:
        raise UnconditionalStoreError(
            f"{store.url} ignores conditional writes, so nothing would stop a second writer; "
            "use another store, or --unsafe-single-writer if only one host will ever mount it"
        )
    return False


async def open_filesystem(
    store: ObjectStore,
    state_dir: StateDir,
    passphrase: Callable[[], bytes],
    clock: Clock,
    options: OpenOptions,
    progress: Progress = no_progress,
) -> Opened:
    """Open a filesystem for one process on this host; close with ``close_filesystem``.

    Raises:
        NotAFilesystemError, PassphraseError, HeldError, UnconditionalStoreError: refused;
            nothing was changed.
        StoreError: the store is away.
    """
    superblock = await load_superblock(store)
    keyring = await unlock(superblock, passphrase)
    await state_dir.lock(wait_s=options.lock_wait_s)
    notices: list[str] = []
    db: Database | None = None
    try:
        keeper = LeaseKeeper(store, clock)
        lease = await keeper.read()
        local = _look_at_local(state_dir, options, superblock)
        db = local.db
        holder = local.holder or uuid.uuid4().hex
        if not options.read_only:
            _refuse_held(lease, holder, options)
            unsafe = options.unsafe_single_writer or superblock.unsafe_single_writer
            keeper.conditional = await require_conditions(store, unsafe_allowed=unsafe)
        db = _choose_local(local, lease, state_dir, notices, clock)
        if db is None:
            db = await _restore(store, keyring, state_dir, lease, options, progress)
        crashed, power_lost = _note_start(db, holder)
        if power_lost and not (options.read_only and options.repairing):
            files = BlockFiles(state_dir.blocks, state_dir.tmp)
            await restore_copies(db, files, keyring, store)
        if not options.read_only:
            await _take_lease(db, keeper, holder, options)
    except BaseException:
        if db is not None:
            db.close()
        state_dir.unlock()
        for notice in notices:  # nobody else will hear of them
            _log.warning("%s", notice)
        raise
    return Opened(
        store=store,
        superblock=superblock,
        keyring=keyring,
        state_dir=state_dir,
        db=db,
        keeper=keeper,
        read_only=options.read_only,
        crashed=crashed,
        power_lost=power_lost,
        notices=notices,
    )


def _refuse_held(lease: Lease, holder: str, options: OpenOptions) -> None:
    if not (lease.released or lease.holder == holder or options.force_takeover):
        raise HeldError(describe_holder(lease))


async def _take_lease(db: Database, keeper: LeaseKeeper, holder: str, options: OpenOptions) -> None:
    await keeper.acquire(holder, force=options.force_takeover)
    db.begin_local()
    local_state.put(db, "epoch", str(keeper.epoch))
    db.commit_durable()


def _look_at_local(state_dir: StateDir, options: OpenOptions, superblock: Superblock) -> _Local:
    """Open the local database if there is one; nothing is moved.

    Raises:
        SettingsError: it is another filesystem's.
    """
    if not state_dir.database.exists():
        return _Local(None, None, doubtful=False)
    db = Database.open(state_dir.database, options.pragmas, repairing=options.repairing)
    if local_state.get(db, "uuid") not in {None, superblock.uuid}:
        db.close()
        raise SettingsError(
            f"{state_dir.path} holds the state of another filesystem that was at this URL; "
            "move it away, or choose another with --cachedir"
        )
    return _Local(db, local_state.get(db, "holder"), doubtful=_is_doubtful(db))


def _choose_local(
    local: _Local, lease: Lease, state_dir: StateDir, notices: list[str], clock: Clock
) -> Database | None:
    """Return the local database if it can be gone on from; else take what is here out of the way."""
    if local.db is None:
        if state_dir.has_remains:
            kept = state_dir.set_aside(str(clock.now_ns()))
            notices.append(
                f"what is left of an earlier state without its database is kept in {kept}"
            )
        return None
    if local.doubtful:
        why = "a crash under such a journal mode or synchronous=off may have damaged them"
        notices.append(_set_aside(local.db, state_dir, clock, why))
        return None
    if not _is_current(local.db, lease):
        _leave_local(local.db, state_dir, notices, clock)
        return None
    return local.db


def _volatility(pragmas: Pragmas) -> str:
    """Return what makes the rows doubtful: any ``crash``, a loss of ``power``, or ``nothing``."""
    if pragmas.journal_mode in {"off", "memory"}:
        return "crash"
    return "nothing" if pragmas.survives_power_loss else "power"


def _is_doubtful(db: Database) -> bool:
    """Return whether the last run ended in a way that its settings do not survive."""
    if local_state.get(db, "clean") == "1":
        return False
    volatile = local_state.get(db, "volatile")
    another_boot = local_state.get(db, "boot_id") != _boot_id()
    return volatile == "crash" or (volatile == "power" and another_boot)


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def _is_current(db: Database, lease: Lease) -> bool:
    """Return whether local state continues the bucket's head; adopt our own unconfirmed head."""
    head = heads.recorded(db, "head")
    if lease.head == head:
        return True
    attempt = heads.recorded(db, "attempt")
    if lease.head is not None and lease.head == attempt:
        db.begin_local()
        heads.confirm(db, lease.head, changed=True)
        db.commit_durable()
        return True
    return False


def _leave_local(db: Database, state_dir: StateDir, notices: list[str], clock: Clock) -> None:
    """The bucket went on without us: drop local state, or keep it aside if it has news."""
    pending = cached.in_state(db, BlockState.DIRTY) + cached.in_state(db, BlockState.SEALED)
    clean = local_state.get(db, "clean") == "1"
    if pending or not clean or local_state.get(db, "changed") == "1":
        notices.append(_set_aside(db, state_dir, clock, "another host has written since"))
        return
    db.close()
    shutil.rmtree(state_dir.blocks, ignore_errors=True)  # first: the database finds it again
    for suffix in ("", "-wal", "-shm", "-journal"):
        state_dir.database.with_name(state_dir.database.name + suffix).unlink(missing_ok=True)


def _set_aside(db: Database, state_dir: StateDir, clock: Clock, why: str) -> str:
    db.close()
    kept = state_dir.set_aside(str(clock.now_ns()))
    return f"local changes were not continued because {why}; they are kept in {kept}"


async def _restore(
    store: ObjectStore,
    keyring: Keyring,
    state_dir: StateDir,
    lease: Lease,
    options: OpenOptions,
    progress: Progress,
) -> Database:
    head = lease.head
    if head is None:
        raise UnfinishedFilesystemError(store.url)
    manifest = await heads.load_manifest(store, keyring, head.manifest_key, head.manifest_hash)
    await restore_image(store, keyring, manifest, state_dir.database, progress)
    db = Database.open(state_dir.database, options.pragmas)
    db.begin_local()
    heads.confirm(db, head, changed=False)
    local_state.put(db, "uuid", manifest.uuid)
    db.commit_durable()
    return db


def _note_start(db: Database, holder: str) -> tuple[bool, bool]:
    """Record that a process uses this state; return how the last one ended."""
    boot_id = _boot_id()
    before = local_state.get(db, "boot_id")
    crashed = before is not None and local_state.get(db, "clean") != "1"
    power_lost = crashed and (before != boot_id or local_state.get(db, "power_lost") == "1")
    db.begin_local()
    if power_lost:  # until ``Session.recover`` has acted on it
        local_state.put(db, "power_lost", "1")
    local_state.put(db, "holder", holder)
    local_state.put(db, "boot_id", boot_id)
    local_state.put(db, "clean", "0")
    local_state.put(db, "volatile", _volatility(db.pragmas))
    db.commit_durable()
    db.changed = crashed or local_state.get(db, "changed") == "1"
    return crashed, power_lost


async def close_filesystem(opened: Opened, *, release: bool) -> None:
    """Mark the local state clean and let everything go.

    Args:
        opened: what ``open_filesystem`` returned.
        release: give the lease back: only when the bucket holds everything.

    Raises:
        StoreError: the lease was not given back; the local state is clean.
    """
    try:
        opened.db.begin_local()
        local_state.put(opened.db, "clean", "1")
        local_state.put(opened.db, "changed", "1" if opened.db.changed else "0")
        opened.db.commit_durable()
        await trio.to_thread.run_sync(opened.db.sync_wal)
        if release and not opened.read_only:
            await opened.keeper.release()
    finally:
        opened.db.close()
        opened.state_dir.unlock()
