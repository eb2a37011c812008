"""Opening a filesystem read-only while its bucket cannot be reached.

Owns: the check of whether the local state is complete, and opening it without the bucket.
Does not know: FUSE, why the bucket cannot be reached.
Keeps: only state that this host has verified is used. The superblock is the copy that an earlier
mount verified. The rows have the state of a txg that this host has applied. Later writes of
another host are not visible, and the mount is read-only.
Design: docs/decisions/0013-offline-mounts.md.
"""

import os
import socket
from dataclasses import replace

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import OlderBucketError
from s3fs_meta.cache.crash_safety.recovery import restore_content
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.clock import Clock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.codec.superblock import Superblock, superblock_facts
from s3fs_meta.errors import (
    ObjectMissingError,
    ObjectTooLargeError,
    OfflineError,
    PassphraseError,
    StoreError,
)
from s3fs_meta.limits import HOST_CHARS_MAX, OFFLINE_AFTER_S, TEXT_OBJECT_BYTES_MAX
from s3fs_meta.meta import replica
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import local_state, properties
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import AbbreviatedLink, BlockId, Epoch
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.lease import lease_proof
from s3fs_meta.sync.lease.keeper import LeaseKeeper
from s3fs_meta.sync.opening import end_marks, failed_sync, local_state_choice, strays
from s3fs_meta.sync.opening.local_state_choice import Local
from s3fs_meta.sync.opening.opening import note_start
from s3fs_meta.sync.store_clock import StoreClock
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.unlocking import Secret
from s3fs_meta.sync.volume import KnownSuperblock, OpenOptions, Position, Volume


async def why_unreachable(store: ObjectStore) -> str:
    """Return why a store does not respond, or "" if it responds; wait at most OFFLINE_AFTER_S."""
    with trio.move_on_after(OFFLINE_AFTER_S):
        try:
            await store.get(lease_codec.KEY, TEXT_OBJECT_BYTES_MAX)
        except (ObjectMissingError, ObjectTooLargeError):
            return ""
        except StoreError as exc:
            return str(exc)
        return ""
    return f"{store.url} has not responded within {OFFLINE_AFTER_S:.0f} s"


async def open_offline(
    store: ObjectStore,
    state_dir: StateDir,
    secret: Secret,
    clock: Clock,
    options: OpenOptions,
    why: str,
) -> Volume:
    """Open a complete local state read-only; close it with ``close_filesystem``.

    Args:
        store: cannot be reached now; content that is not cached is read from it later.
        state_dir: the state directory of the filesystem.
        secret: unlocks the superblock.
        clock: the clock for the timestamps of files.
        options: only the pragmas, ``follow``, ``at_least`` and the timeout of the lock are used.
        why: the reason why the store cannot be reached.

    Raises:
        OfflineError: the local state is not complete, or its recovery needs the store; no content
            was lost.
        OlderBucketError: the local state is older than ``at_least``.
        PassphraseError: the secret does not unlock the superblock.
        HeldError: another process on this host uses the local state.
        FormatError: the database is damaged.
    """
    superblock, keyring = await _open_remembered(state_dir, secret, why)
    await state_dir.lock(wait_s=options.lock_wait_s)
    db: Database | None = None
    try:
        await failed_sync.write_database_again(state_dir)
        local = local_state_choice.examine(state_dir, options.pragmas, superblock, repairing=False)
        db = local.db
        again = [] if db is None else await failed_sync.write_blocks_again(state_dir, db)
        link = await _complete(local, keyring, why, follows=options.follow)
        assert db is not None, "a complete local state must have a database"
        properties.require(db, superblock_facts(superblock))
        if options.at_least is not None:
            _require_mark(store.url, link, options.at_least)
        held = lease_proof.known(db, state_dir, keyring, doubtful=False)
        crashed, power_lost = note_start(db, keyring, held.holder, chain.own_txg(db))
        if crashed:
            await _restore_content(db, state_dir, keyring, store, why, power_lost=power_lost)
        stamp, first = str(clock.now_ns()), BlockId(0 if crashed else db.counters.next_block)
        killed = crashed and not power_lost
        notices = await strays.settle(state_dir, db, keyring, stamp, first, killed=killed)
        db.counters.begin_txg(link.next_txg)
        keeper = LeaseKeeper(store, clock)
        keeper.assume(_last_known_lease(db, held.holder))
        return Volume(
            store=store,
            clock=StoreClock(store, clock),
            known=KnownSuperblock(superblock),
            keyring=keyring,
            state_dir=state_dir,
            db=db,
            recorder=ChangeRecorder(db, clock.now_ns),
            keeper=keeper,
            position=Position(link),
            options=replace(options, read_only=True),
            crashed=crashed,
            power_lost=power_lost,
            notices=(_notice(why, follows=options.follow), *again, *notices),
            offline=why,
        )
    except BaseException:
        if db is not None:
            db.close()
        state_dir.unlock()
        raise


async def _complete(local: Local, keyring: Keyring, why: str, *, follows: bool) -> Link:
    """Return the local state's chain position; the state must be complete and use *keyring*.

    The state of a follower is complete after each txg, except for totals, which are recounted.

    Raises:
        OfflineError: the local state is incomplete or uses different keys.
    """
    if local.db is None or local.doubtful:
        raise OfflineError(why, "the local metadata is missing or may be incomplete")
    if local_state.get(local.db, "key_check") not in {None, keyring.check_value}:
        raise OfflineError(
            why, "the local metadata was written with other keys than the superblock has"
        )
    link = chain.recorded(local.db)
    if link is None:
        raise OfflineError(why, "this host does not know the last txg of the bucket")
    if follows and not local_state_choice.is_exact(local.db):
        lacking = "the local state has changes that are not in the bucket, so it cannot follow"
        raise OfflineError(why, f"{lacking}; use the option ro without follow")
    if replica.is_unsettled(local.db):
        with end_marks.unclean(local.db):
            await in_thread(_settle, local.db)
    return link


def _settle(db: Database) -> None:
    """Recount the totals that changelogs do not contain."""
    db.begin_local()
    replica.settle_at_txg(db)
    db.commit()


def _notice(why: str, *, follows: bool) -> str:
    later = "; it will follow the writer as soon as the bucket responds" if follows else ""
    return f"mounted offline, from local state alone: {why}{later}"


def _require_mark(url: str, link: Link, mark: AbbreviatedLink) -> None:
    """Raise OlderBucketError if the local state is older than the txg that the caller requires.

    A later chain position is accepted, because the hash of the required txg cannot be read without
    the bucket.

    Raises:
        OlderBucketError: the state is older, or has a different txg with the required number.
    """
    is_other = link.txg == mark.txg and not link.hash.startswith(mark.hash)
    if link.txg < mark.txg or is_other:
        what = f"the bucket is unreachable, and this host has only txgs up to {link.txg}"
        raise OlderBucketError(url, mark.txg, what, "mount again when the bucket is reachable")


async def _open_remembered(
    state_dir: StateDir, secret: Secret, why: str
) -> tuple[Superblock, Keyring]:
    """Return this host's copy of the superblock, and the keys that the secret unlocks."""
    remembered = Remembered(state_dir.path)
    data = await in_thread(remembered.read)
    if data is None:
        raise OfflineError(why, "this host has no copy of the superblock")
    superblock = superblock_codec.decode(superblock_codec.KEY, data)
    if secret.given and not superblock.encrypted:
        raise PassphraseError(
            "this host's copy of the superblock is not encrypted, although a passphrase is given"
            f" {secret.given}; leave the passphrase out to use a filesystem without encryption"
        )
    return superblock, await secret.open(superblock)


async def _restore_content(
    db: Database,
    state_dir: StateDir,
    keyring: Keyring,
    store: ObjectStore,
    why: str,
    *,
    power_lost: bool,
) -> None:
    """Restore the content of blocks damaged by a crash, without the bucket."""
    try:
        files = BlockFiles(state_dir.blocks, state_dir.tmp)
        await restore_content(db, files, keyring, store, power_lost=power_lost)
    except StoreError as exc:
        raise OfflineError(
            why, "blocks that a power loss damaged can be restored only from the bucket"
        ) from exc


def _last_known_lease(db: Database, holder: str) -> Lease:
    """Return a lease with this host's last known epoch and head, for ``status``."""
    return Lease(
        epoch=Epoch(local_state.number(db, "epoch") or 0),
        holder=holder,
        host=socket.gethostname()[:HOST_CHARS_MAX],
        pid=os.getpid(),
        since_ns=0,
        released=True,
        head=image_head.recorded(db, "head"),
        nonce=None,
    )
