"""Opening a filesystem on this host: keys, lock, local state or restore, lease, fence record.

Owns: the order of these steps. Does not know: FUSE, the internals of the cache.
Design: docs/design/durability.md, "At mount" and "One writer".
"""

import contextlib
import logging
from typing import Final

import trio

from s3fs_meta import machine
from s3fs_meta.background_task import finish, in_thread, in_thread_or_here, is_orderly
from s3fs_meta.bucket_errors import ExchangedSuperblockError
from s3fs_meta.cache.crash_safety import intent_replay
from s3fs_meta.cache.crash_safety.recovery import restore_content
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.clock import Clock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.codec.superblock import superblock_facts
from s3fs_meta.errors import FormatError, NewerFormatError, S3fsError, StoreError
from s3fs_meta.limits import CLEANUP_S_MAX
from s3fs_meta.meta import next_numbers
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import local_state, properties
from s3fs_meta.meta.tables.pending import ChangeRecorder
from s3fs_meta.model import BlockId, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.history.points_in_time import described, require_at_least
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.lease import lease_proof
from s3fs_meta.sync.lease.fence import Fencer
from s3fs_meta.sync.lease.keeper import Hold, LeaseKeeper, refuse_held
from s3fs_meta.sync.lease.lease_repair import read_or_derive, why_too_high
from s3fs_meta.sync.opening import end_marks, failed_sync, local_state_choice, strays
from s3fs_meta.sync.opening.current_database import CurrentDatabase
from s3fs_meta.sync.opening.local_state_choice import (
    Local,
    OpeningContext,
    is_damage_of,
    needs_no_lease,
    with_advice,
)
from s3fs_meta.sync.progress import Progress, no_progress
from s3fs_meta.sync.store_clock import StoreClock, is_later
from s3fs_meta.sync.superblock.changes import put_back
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.proof import opens_an_image
from s3fs_meta.sync.superblock.selection import Keys, open_keys
from s3fs_meta.sync.superblock.unlocking import Secret
from s3fs_meta.sync.volume import (
    KnownSuperblock,
    OpenOptions,
    Position,
    Volume,
)

_log = logging.getLogger(__name__)

_NOT_IN_TIME: Final = (
    "the lease was not released, because the store did not reply in time; a mount and an unmount on"
    " this host release it"
)


async def open_filesystem(
    store: ObjectStore,
    state_dir: StateDir,
    secret: Secret,
    clock: Clock,
    options: OpenOptions,
    progress: Progress = no_progress,
) -> Volume:
    """Open a filesystem for one process on this host; close it with ``close_filesystem``.

    Raises:
        NotAFilesystemError, PassphraseError, HeldError, UnconditionalStoreError, OlderBucketError:
            the filesystem must not be opened. Local state may have been quarantined. The lease is
            unchanged, unless another host wrote at the same time.
        StoreError: the store is unavailable.
        The same errors as ``open_keys``.
    """
    remembered = Remembered(state_dir.path)
    keys = await open_keys(store, remembered, secret)
    await state_dir.lock(wait_s=options.lock_wait_s)
    context = OpeningContext(
        store, keys.superblock, keys.keyring, state_dir, clock, progress, options
    )
    opening = _Opening(context, remembered, keys)
    try:
        with (
            contextlib.nullcontext()
            if options.repairing
            else local_state_choice.advising(state_dir)
        ):
            volume = await opening.run()
    except BaseException as exc:
        if is_orderly(exc):
            await opening.give_lease_back()  # noqa: ASYNC102 - shields itself
            if not (isinstance(exc, FormatError) and is_damage_of(exc, state_dir)):
                await opening.mark_clean_again()  # noqa: ASYNC102 - shields itself
        if opening.db is not None:
            opening.db.close()
        state_dir.unlock()
        for notice in opening.notices:  # log the notices now, because no volume will return them
            _log.warning("%s", notice)
        raise
    return volume


class _Opening:
    """One opening of a filesystem, while its state directory is locked."""

    def __init__(self, context: OpeningContext, remembered: Remembered, keys: Keys) -> None:
        self._store = context.store
        self._remembered = remembered
        self._keys = keys
        self._superblock = keys.superblock
        self._keyring = keys.keyring
        self._state_dir = context.state_dir
        self._clock = context.clock
        self._options = context.options
        self._keeper = LeaseKeeper(
            context.store, context.clock, check_s=context.options.lease_check_s
        )
        self._store_clock = StoreClock(context.store, context.clock)
        self._current = CurrentDatabase(context)
        self.db: Database | None = None
        self._was_clean = False  # True once a cleanly closed state is marked as in use
        self.notices = list(keys.notices)

    async def run(self) -> Volume:
        """Choose or restore a database and take the lease. Raises errors of ``open_filesystem``."""
        options = self._options
        lease = await self._read_lease()
        local = await self._require_keys(await self._examine())
        held = lease_proof.known(local.db, self._state_dir, self._keyring, doubtful=local.doubtful)
        own = None if local.db is None else chain.own_txg(local.db)
        unknown = strays.ALL if local.db is None else BlockId(local.db.counters.next_block)
        if not options.read_only:
            await self._require_lease(lease, held, local)
            unsafe = options.unsafe_single_writer or self._superblock.unsafe_single_writer
            await self._keeper.require_conditions(unsafe_allowed=unsafe)
            await self._store_clock.compare()
            if self._store_clock.disagreement:
                self.notices.append(self._store_clock.disagreement)
        elif options.repairing:
            # A repair compares the times of txgs with the store's clock.
            await self._store_clock.measure_for_reading()
        await self._require_at_least(None)
        db = await self._choose_database(local, lease, held.holder)
        if not options.repairing:
            properties.require(db, superblock_facts(self._superblock))
        await self._require_at_least(db)
        crashed, power_lost = note_start(db, self._keyring, held.holder, own)
        self._was_clean = not crashed
        if crashed and not (options.read_only and options.repairing):
            files = BlockFiles(self._state_dir.blocks, self._state_dir.tmp)
            await restore_content(db, files, self._keyring, self._store, power_lost=power_lost)
        if not options.read_only:
            taken = await self._take_over(db, held)
            if taken is not db:  # restored, because the former writer has appended txgs
                db, crashed, power_lost = taken, False, False
            await self._require_at_least(db)
        first = strays.ALL if crashed else unknown
        await self._settle_strays(db, first, killed=crashed and not power_lost and db is local.db)
        recorder = ChangeRecorder(db, self._clock.now_ns)
        link = chain.recorded(db)
        assert link is not None, "every chosen or restored database has a link"
        if is_later(link.created_ns, self._store_clock.now_ns()):
            self.notices.append(
                f"{described(link)} is in the future, because a host with a wrong clock wrote it;"
                " if the clock of this host is right, s3fs-meta fsck -y begins a new time span"
            )
        db.counters.begin_txg(link.next_txg)
        await self._spread_superblock()
        return Volume(
            store=self._store,
            known=KnownSuperblock(self._superblock),
            keyring=self._keyring,
            state_dir=self._state_dir,
            db=db,
            recorder=recorder,
            keeper=self._keeper,
            position=Position(link),
            clock=self._store_clock,
            options=options,
            crashed=crashed,
            power_lost=power_lost,
            notices=tuple(self.notices),
            superblock_faults=tuple(self._keys.notices),
            mended=tuple(self._current.mended),
        )

    async def give_lease_back(self) -> None:
        """After an error, release the lease, unless a host held it before or this host needs it."""
        if self.db is not None and can_give_back(self._keeper, self.db, self._keyring):
            await release_after_error(self._keeper)

    async def mark_clean_again(self) -> None:
        """After an error, mark the local state as cleanly closed if it was before this opening.

        Otherwise the next mount would treat this opening as a crash. This takes at most
        ``CLEANUP_S_MAX``, also if the caller is cancelled.
        """
        if self.db is None or self.db.is_closed or not self._was_clean:
            return
        with trio.move_on_after(CLEANUP_S_MAX, shield=True):
            try:
                self.db.rollback()
                await mark_clean(self.db)
            except (S3fsError, OSError) as exc:
                _log.warning("the next mount treats this as an unclean shutdown: %s", exc)

    async def _take_over(self, db: Database, held: Hold) -> Database:
        """Take the lease and append the fence record. Raises errors of ``Fencer.take_over``."""
        fencer = Fencer(
            self._store,
            self._keyring,
            self._superblock.uuid,
            self._state_dir,
            self._keeper,
            self._store_clock,
            self._options.hook,
        )
        return await fencer.take_over(
            db,
            held,
            force=self._options.force_takeover,
            catch_up=lambda db: self._catch_up(db, held.holder),
            behind=lambda: self._current.behind,
        )

    async def _spread_superblock(self) -> None:
        """Copy the superblock to this host, and restore missing copies if the lease is held."""
        await in_thread(self._remembered.keep, self._keys.data)
        if self._options.read_only:
            return
        try:
            self.notices += await put_back(self._store, self._keys, self._options.hook)
        except StoreError as exc:  # a later check or mount stores it again
            self.notices.append(
                f"a missing copy of the superblock could not be stored again: {exc}"
            )

    async def _examine(self) -> Local:
        """Open the local database if it exists; rewrite it first if a failed sync is recorded."""
        await failed_sync.write_database_again(self._state_dir)
        local = local_state_choice.examine(
            self._state_dir,
            self._options.pragmas,
            self._superblock,
            repairing=self._options.repairing,
        )
        self.db = local.db
        # fsck -n must not change block files
        if not (self._options.read_only and self._options.repairing):
            self.notices += await failed_sync.write_blocks_again(self._state_dir, local.db)
        return local

    async def _require_at_least(self, db: Database | None) -> None:
        """Raise OlderBucketError if the bucket, or *db*, is older than ``at_least``.

        The bucket is checked first, so that an outdated bucket changes nothing on this host. The
        rows are checked later, because a store may hide objects that it showed before.
        """
        mark = self._options.at_least
        if mark is None:
            return
        link = None if db is None else chain.recorded(db)
        uuid = self._superblock.uuid
        unsure = await require_at_least(self._store, self._keyring, uuid, mark, link)
        if unsure is not None and unsure not in self.notices:
            self.notices.append(unsure)

    async def _require_keys(self, local: Local) -> Local:
        """Refuse local state that was written with keys other than the bucket's keys.

        An upload of this state would use the bucket's keys.

        State from an older version of the program has no record of its keys. It is accepted if the
        keys of the bucket's superblock decrypt an image.

        Raises:
            FormatError: the changelog that waits for its upload is damaged, and the mount is not
                read-only.
            ExchangedSuperblockError: the keys differ. If the user accepts the bucket's superblock,
                the state is quarantined instead.
        """
        if local.db is None:
            return local
        known = local_state.get(local.db, "key_check")
        if known is not None:
            same = known == self._keyring.check_value
        else:
            same = self._keyring.encrypted or await opens_an_image(
                self._store, self._keyring, self._superblock.uuid
            )
        if same:
            if not local.doubtful:  # doubtful state is never uploaded
                await self._require_attempt(local.db)
            return local
        path = self._state_dir.path
        if not self._options.accept_superblock:
            raise ExchangedSuperblockError(
                self._store.url, f"has other keys than the local state in {path}"
            )
        if not local.doubtful:
            await in_thread(end_marks.settle_before_quarantine, local.db)
        local.db.close()
        self.db = None
        stamp = str(self._clock.now_ns())
        kept = await in_thread(self._state_dir.quarantine_as, stamp)
        self.notices.append(f"the local state has other keys, so it is quarantined in {kept}")
        return Local(None, doubtful=False)

    @property
    def _only_shows(self) -> bool:
        """Return whether this is a read-only mount that shows the state of this host."""
        options = self._options
        return options.read_only and not options.repairing and not options.follow

    async def _require_attempt(self, db: Database) -> None:
        """Refuse local state whose changelog for the next upload is damaged.

        A read-only mount uploads nothing, and the rows have all changes of the changelog.
        """
        try:
            await in_thread(chain.require_attempt, db, self._keyring)
        except NewerFormatError:
            raise
        except FormatError as exc:
            if not self._only_shows:
                raise
            self.notices.append(
                "only read-only mounts can show the changes of this host that are not in the"
                f" bucket: {with_advice(exc).message}"
            )

    async def _read_lease(self) -> Lease:
        """Return the lease; a read-only mount accepts a lease derived from the newest image."""
        if not self._only_shows:
            lease = await self._keeper.read()
            if self._options.read_only and self._options.repairing:
                # A mount for writing, which takes the lease, would refuse it.
                why = await why_too_high(self._store, self._keyring, self._clock, lease)
                if why is not None:
                    advice = "s3fs-meta fsck -y makes a new lease"
                    raise FormatError(lease_codec.KEY, f"{why}; {advice}")
            return lease
        damage = await read_or_derive(self._keeper, self._store, self._keyring, self._clock)
        if damage is not None:
            self.notices.append(damage)
        return self._keeper.lease

    async def _require_lease(self, lease: Lease, held: Hold, local: Local) -> None:
        """Before any file is moved, raise HeldError if the lease must not be taken."""
        force = self._options.force_takeover
        refuse_held(lease, held, force=force)
        if local.db is not None and not local.doubtful:
            await lease_proof.refuse_copy(
                self._store,
                self._keyring,
                self._superblock.uuid,
                lease,
                local.db,
                force=force,
            )

    async def _choose_database(self, local: Local, lease: Lease, holder: str) -> Database:
        """Return a database with the last txg of the chain, perhaps with later local changes.

        Raises:
            MetadataError: a writer must not use the next numbers of the database.
        """
        try:
            db = await self._current.choose(local, lease, holder)
        finally:
            self.db = self._current.db
            self.notices += self._current.notices
            self._current.notices = []
        if not (self._options.read_only or self._options.repairing):
            next_numbers.require_valid(db)
        return db

    async def _settle_strays(self, db: Database, first: BlockId, *, killed: bool) -> None:
        """Remove or quarantine stray block files, except in a repair, which may need them."""
        if self._options.repairing:
            return
        stamp = str(self._clock.now_ns())
        self.notices += await strays.settle(
            self._state_dir, db, self._keyring, stamp, first, killed=killed
        )

    async def _catch_up(self, db: Database, holder: str) -> Database:
        """Advance the database to the last txg, because the former writer has appended txgs."""
        found = await self._choose_database(Local(db, doubtful=False), self._keeper.lease, holder)
        if found is not db:  # ``note_start`` was already called for *db*
            note_start(found, self._keyring, holder, None)
        return found


def note_start(db: Database, keyring: Keyring, holder: str, own: Txg | None) -> tuple[bool, bool]:
    """Record that this process uses the state; return whether the last use ended in a crash.

    A recovery that did not finish counts as a crash, even if the state is marked as clean.

    Args:
        own: the last txg that this host wrote, according to the database before opening. Since
            then, *db* may have been restored, or may have adopted the last attempted txg.
    """
    memory = machine.memory_of(db.path.parent)
    before = local_state.get(db, "boot_id")
    is_unrecovered = local_state.get(db, "power_lost") == "1"
    crashed = before is not None and (is_unrecovered or local_state.get(db, "clean") != "1")
    power_lost = crashed and (is_unrecovered or machine.has_forgotten(before, memory))
    with end_marks.synced(db):
        db.begin_local()
        if power_lost:  # the row remains until ``Session.recover`` has repaired all rows
            local_state.put(db, "power_lost", "1")
        if crashed:  # the row remains until the copy of the database for an image is found intact
            local_state.put(db, "unchecked", "1")
        local_state.put(db, "holder", holder)
        local_state.put(db, "key_check", keyring.check_value)
        if own is not None:
            chain.note_own(db, max(own, chain.noted_own(db) or own))
        local_state.put(db, "boot_id", memory)
        local_state.put(db, "clean", "0")
        local_state.put(db, "volatile", _volatile(db, crashed=crashed))
        if not crashed:
            intent_replay.end_use(db)
        db.commit_durable()
    db.mark_changed(crashed or local_state.get(db, "changed") == "1")
    return crashed, power_lost


def _volatile(db: Database, *, crashed: bool) -> str:
    """Return the event that may lose rows: ``crash``, ``power`` (loss) or ``nothing``.

    Until all content in a crashed process's intent log is also in block files, an older version of
    the program must quarantine the state after a power cut.
    """
    volatile = end_marks.volatility(db.pragmas)
    return (
        "power" if crashed and volatile == "nothing" and intent_replay.is_in_use(db) else volatile
    )


def can_give_back(keeper: LeaseKeeper, db: Database, keyring: Keyring) -> bool:
    """Return whether a failed opening may release its lease, so that any host may take it.

    The lease may be released only if no host held it before this opening, and if the rows show that
    the bucket has all changes of this host. The second condition is needed after ``fsck -y`` has
    replaced a lost lease: no host holds the new lease, but this host may have unshipped changes.
    """
    try:
        return keeper.has_replaced_released and needs_no_lease(db, keyring)
    except S3fsError as exc:
        _log.warning("the lease is kept, because the local state cannot be read: %s", exc)
        return False


async def release_after_error(keeper: LeaseKeeper) -> None:
    """Release the lease if it is held; only log a failure, because the caller reports an error.

    This takes at most ``CLEANUP_S_MAX``, also if the caller is cancelled.
    """
    if not keeper.is_held:
        return
    with trio.move_on_after(CLEANUP_S_MAX, shield=True) as scope:
        try:
            await keeper.release()
        except (S3fsError, OSError) as exc:
            _log.warning("cannot release the lease: %s", exc)
    if scope.cancelled_caught:
        _log.warning(_NOT_IN_TIME)


def note_kept_lease() -> None:
    """Log that the lease is kept, and how it can be released."""
    _log.warning(
        "this host keeps the lease, because it may have changes that are not in the bucket;"
        " s3fs-meta fsck -y, or a mount and an unmount, on this host uploads them and releases it"
    )


async def close_filesystem(volume: Volume, *, release: bool) -> None:
    """Mark the local state clean, close the database and unlock the state directory.

    Args:
        volume: returned by ``open_filesystem``.
        release: also release the lease, even if the local disk fails or the caller is cancelled;
            only allowed if the bucket has all changes.

    Raises:
        StoreError: the lease was not released; the local state is clean.
        OSError, DatabaseError: the disk failed; the next mount treats the end as a crash, or
            writes the local state to the disk again.
    """
    release = release and volume.keeper.is_held
    try:
        await mark_clean(volume.db)
    except BaseException as exc:
        if release and is_orderly(exc):
            await release_after_error(volume.keeper)  # noqa: ASYNC102 - shields itself
        raise
    else:
        if release:
            await _release(volume.keeper)
    finally:
        volume.db.close()
        let_go(volume)


async def _release(keeper: LeaseKeeper) -> None:
    """Release the lease; delay a cancellation until the store replies, for a limited time."""
    try:
        await finish(keeper.release, CLEANUP_S_MAX)
    except BaseException as exc:
        # The callers catch a cancellation, which therefore is not reported elsewhere.
        if not keeper.lease.released and not isinstance(exc, Exception):
            _log.warning(_NOT_IN_TIME)
        raise


async def mark_clean(db: Database) -> None:
    """Record durably that the process ended cleanly; all block files must be durable already.

    Raises:
        OSError, DatabaseError: the disk failed; the end counts as a crash.
    """
    db.commit()  # SQLite changes its sync level only outside a transaction
    await in_thread_or_here(end_marks.sync_from_now, db)
    db.begin_local()
    local_state.put(db, "clean", "1")
    local_state.put(db, "changed", "1" if db.changed else "0")
    db.commit_durable()
    await in_thread_or_here(db.sync_wal)


def let_go(volume: Volume) -> None:
    """Unlock the state directory; remove it first if it is temporary."""
    if volume.temporary:
        volume.state_dir.remove()
    volume.state_dir.unlock()
