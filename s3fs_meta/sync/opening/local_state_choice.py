"""The choice between the local state of a filesystem and a restore from the bucket.

Owns: the decision, based on the positions of local state and bucket in the chain.
Does not know: the lease, the cache's internals.

    Without local state, the state is restored from the bucket.
    If the bucket ends at this host's chain position, the local state is used; a follower must have
      no unshipped changes.
    If the bucket has later txgs and there are no unshipped changes, the txgs are applied.
    If the bucket has later txgs and there are unshipped changes, the state is restored from the
      bucket; the local state is quarantined and reported.
    If damage removed the changelog of this host's chain position from the bucket, the local state
      is used; the next txg is an image.
    If the bucket is older or differs, the mount is refused; fsck -y may use the local state, and
      then the next txg is an image.

If the bucket has the changelog that this host tried to upload last, this changelog
becomes the host's chain position.
Design: docs/design/durability.md, "At mount".
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from s3fs_meta import disk_full, machine
from s3fs_meta.background_task import in_thread
from s3fs_meta.bucket_errors import BrokenChainError, OlderBucketError
from s3fs_meta.cache.crash_safety import intent_replay
from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Kind, key_of
from s3fs_meta.codec.image import NO_HASH, content_hash
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import (
    CorruptionError,
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    SettingsError,
)
from s3fs_meta.meta import replica
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.offline import histories
from s3fs_meta.meta.tables import cached_blocks, local_state, packs, pending, properties
from s3fs_meta.model import BlockState, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync import last_copies
from s3fs_meta.sync.chain import abandoned_txgs, chain, names
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.chain.replay import NeedsImageError, Replayer
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.lease import lease_proof
from s3fs_meta.sync.opening import end_marks, local_facts, strays
from s3fs_meta.sync.progress import Progress
from s3fs_meta.sync.volume import OpenOptions

ADVICE: Final = (
    "s3fs-meta fsck -y quarantines it and continues from the bucket; s3fs-meta recover-state reads"
    " what was quarantined"
)
# If the state directory was copied, the later writer may be the original on the same host.
_LATER: Final = "another host, or another copy of the state directory, has written since"
_LONG_AGO: Final = f"{_LATER}, and the history in between is not retained"


class Local(NamedTuple):
    """The local state of a filesystem."""

    db: Database | None
    doubtful: bool  # True if committed rows may have been lost; see ``volatility``


def examine(
    state_dir: StateDir, pragmas: Pragmas, superblock: Superblock, *, repairing: bool
) -> Local:
    """Open the local database if it exists; no file is moved.

    Raises:
        SettingsError: the database belongs to another filesystem.
        FormatError: the database is damaged.
    """
    if not state_dir.database.exists():
        return Local(None, doubtful=False)
    with contextlib.ExitStack() as opened:
        db = local_facts.open_checked(state_dir.database, pragmas, repairing=repairing)
        opened.callback(db.close)
        if local_state.get(db, "uuid") not in {None, superblock.uuid}:
            raise SettingsError(
                f"the directory {state_dir.path} holds the state of another filesystem that was at "
                "this URL; move it away, or choose another directory with --cachedir"
            )
        found = Local(db, doubtful=_is_doubtful(db))
        opened.pop_all()
    return found


def is_damage_of(exc: FormatError, state_dir: StateDir) -> bool:
    """Return whether an error reports damage to the local database."""
    return exc.key == str(state_dir.database) and not isinstance(exc, NewerFormatError)


def with_advice(exc: FormatError) -> FormatError:
    """Return the error about the local database, with advice added to its message."""
    what = exc.what if ADVICE in exc.what else f"{exc.what}; {ADVICE}"
    return FormatError(exc.key, what)


@contextlib.contextmanager
def advising(state_dir: StateDir) -> Iterator[None]:
    """Add advice to errors about a full disk, and about damage to the local database."""
    try:
        with disk_full.advising(state_dir.path):
            yield
    except FormatError as exc:
        if not is_damage_of(exc, state_dir):
            raise
        raise with_advice(exc) from exc


def _is_doubtful(db: Database) -> bool:
    """Return whether the last run may have lost committed rows, according to its records."""
    if local_state.get(db, "clean") == "1":
        return False
    volatile = local_state.get(db, "volatile")
    before = local_state.get(db, "boot_id")
    power_lost = machine.has_forgotten(before, machine.memory_of(db.path.parent))
    if volatile == "power" and intent_replay.is_in_use(db):
        return False  # the row is meant for older versions, which ignore the intent log
    return volatile == "crash" or (volatile == "power" and power_lost)


class ReplacedState(NamedTuple):
    """Local state that will be replaced once another database is restored."""

    db: Database
    why: str
    link: Link | None  # position of the state in the chain; None if unknown or not in the chain
    keep: bool  # True if the state may contain the only copy of data
    shipped: bool  # True if the bucket has all changes in the state
    intact: bool  # False if a crash may have damaged the database


class OpeningContext(NamedTuple):
    """The filesystem that is being opened, and how."""

    store: ObjectStore
    superblock: Superblock
    keyring: Keyring
    state_dir: StateDir  # locked
    clock: Clock
    progress: Progress
    options: OpenOptions


class Chooser:
    """Decides whether a mount uses or replaces the local state, and prepares the replacement."""

    def __init__(self, context: OpeningContext, lease: Lease) -> None:
        """Create a chooser; *lease* is the lease as read from the bucket."""
        self._store = context.store
        self._keyring = context.keyring
        self._superblock = context.superblock
        self._state_dir = context.state_dir
        self._clock = context.clock
        self._progress = context.progress
        self._lease = lease
        # A follower's rows must equal the state of a txg.
        self._follows = context.options.follow
        mend = context.options.mend
        # True: publish the local state, unless another host wrote later
        self._mends = mend is not None
        # True: publish the local state in any case
        self._publishes = mend is not None and mend.publish_local
        self.left: ReplacedState | None = None
        self.lost_end = ""  # reason why this host's last changelog is unreadable
        # True if the bucket was reset to an older copy, in which packs may also be missing.
        self.is_put_back = False
        self.replaces = False  # True if the local state will replace another history in the bucket
        self.notices: list[str] = []  # facts to show to the user, one line each

    async def choose(self, local: Local) -> Database | None:
        """Return the local database with the last txg of the chain, or None if it cannot be used.

        State that cannot be used stays in ``left`` until ``remove_replaced``, because a restore may
        fail. After an error the caller closes the database.

        Raises:
            OlderBucketError: the bucket was reset to an older copy; the local state is kept.
            SettingsError: the local state of a follower has changes that are not in the bucket.
            StoreError: the bucket is unavailable; some of its txgs may already be applied.
        """
        if local.db is None:
            if self._state_dir.has_remains:
                stamp = str(self._clock.now_ns())
                kept = await in_thread(self._state_dir.quarantine_as, stamp)
                self.notices.append(
                    f"files of an earlier local state without a database are kept in {kept}"
                )
            return None
        if local.doubtful:
            why = "a crash with this journal mode or synchronous=off may have damaged the database"
            return self._reject(local.db, why, intact=False)
        link = chain.recorded(local.db)
        if link is None:
            return self._reject(
                local.db, "it is unknown on which txg the local state is based", keep=True
            )
        with end_marks.unclean(local.db):
            return await self._compare(local.db, link)

    async def remove_replaced(self, restored: Path) -> None:
        """Remove the state in ``left``, or quarantine it if it may be the only copy.

        Args:
            restored: the database that replaces the state.
        """
        left, self.left = self.left, None
        if left is None:
            return
        stamp = str(self._clock.now_ns())
        if not left.keep:
            why = await in_thread(_why_kept, left, restored)
            if why:
                left = left._replace(why=f"{left.why}; {why}", keep=True)
        if not left.keep:
            try:
                self.notices += await strays.settle(self._state_dir, left.db, self._keyring, stamp)
            finally:
                left.db.close()
            self._state_dir.drop_contents()
            return
        # Without --everything, recover-state copies only files with unshipped changes.
        how = "--everything " if left.shipped else ""
        if left.intact:
            await in_thread(end_marks.settle_before_quarantine, left.db)
        left.db.close()
        kept = await in_thread(self._state_dir.quarantine_as, stamp)
        self.notices.append(
            f"local changes were not used because {left.why}; they are kept in {kept}, and"
            f" s3fs-meta recover-state {how}copies files out of it"
        )

    async def _compare(self, db: Database, link: Link) -> Database | None:
        link = await self._adopt_fence_of_mend(db, link)
        newer = await self._newer(db, link)
        if newer is None:
            return await self._leave_unknown(db, link)
        if newer:  # a damaged attempt of a read-only mount may be one of these txgs
            await in_thread(chain.require_attempt, db, self._keyring)
        link, newer = await self._adopt_attempt(db, link, newer)
        image = None if newer or self.lost_end else await self._later_image(link)
        if image is not None:
            why = f"the bucket has a later image, {image}, but no changelogs that lead to it"
            if not self._publishes:
                return self._reject(db, why, keep=True)
            newer = self._replace(db, OlderBucketError(self._store.url, link.txg, why))
        if newer and abandoned_txgs.is_put_back(abandoned_txgs.wanted(db) or ""):
            why = f"{_LATER}, and that history does not contain these changes"
            return self._reject(db, why, keep=True)
        unsettled = replica.is_unsettled(db)
        if self._follows or newer or unsettled:
            await in_thread(self._drop_fence, db)
        if not newer and not unsettled and (not self._follows or is_exact(db)):
            return db
        if not newer and not is_settled(db):
            raise SettingsError(
                f"the local state in {self._state_dir.path} has changes that are not in the bucket,"
                " so it cannot follow: mount it for writing first, or use another --cachedir"
            )
        if not is_exact(db):
            return self._reject(db, _LATER, link=link)
        return await self._follow(db, link)

    async def _follow(self, db: Database, link: Link) -> Database | None:
        replayer = Replayer(self._store, self._keyring, self._superblock.uuid, db)
        try:
            await replayer.forward(link, self._progress)
        except NeedsImageError:
            return self._reject(db, "a txg of the bucket is a complete image", link=link)
        except (FormatError, ObjectMissingError) as exc:
            if (
                isinstance(exc, BrokenChainError)
                and not exc.misfit
                and await self._is_passed(Txg(exc.last_txg + 1))
            ):
                return self._reject(db, _LONG_AGO)
            why = f"later txgs in the bucket cannot be applied to the local state: {exc}"
            return self._reject(db, why, link=chain.recorded(db), keep=True)
        self.notices += replayer.notices
        db.begin_local()
        replica.settle_at_txg(db)
        db.commit()
        return db

    async def _newer(self, db: Database, link: Link) -> list[Txg] | None:
        """Return the bucket's txgs after *link*, or None if they may belong to another history.

        Raises:
            OlderBucketError: the changelog of *link* is missing, or another changelog replaced
                it.
        """
        numbers = await chain.numbers_from(self._store, self._keyring, link.txg)
        newer = [txg for txg in numbers if txg > link.txg]
        if link.hash == NO_HASH:  # the position is that of an image without a changelog
            return newer if not newer or newer[0] == link.next_txg else None
        is_listed = link.txg in numbers
        try:
            why = await self._why_lost(db, link) if is_listed else "the object is missing"
            if not why:
                return newer
            if newer and newer[0] == link.next_txg and await self._names(link):
                return newer
            if (
                not newer
                and not is_listed
                and not (self._mends and lease_proof.took_last(db, self._lease))
            ):
                raise self._older(link, f"{key_of(link.txg)} is missing")
        except OlderBucketError as exc:
            if not self._publishes:
                raise
            return self._replace(db, exc)
        if newer:
            return None
        self.is_put_back = not is_listed
        head = self._lease.head
        if (head is not None and head.txg > link.txg) or (
            await names.last_name(self._store, self._keyring, link.txg) > link.txg
        ):
            return None  # another host has written later txgs, and their changelogs are lost
        self._note_lost_end(key_of(link.txg), why)
        return newer

    async def _later_image(self, link: Link) -> ObjectKey | None:
        """Return the head's key if it is an image for a txg after the last changelog.

        Such an image exists if another host has rebuilt the filesystem, or if it has written txgs
        whose changelogs are lost.
        """
        head = self._lease.head
        if head is None or head.txg <= link.txg:
            return None
        try:
            manifest = await image_head.load_manifest(self._store, self._keyring, head.manifest)
        except NewerFormatError:
            raise
        except (CorruptionError, ObjectMissingError):
            return None
        # Compare the txg of the manifest, because the lease is not authenticated.
        return head.manifest_key if manifest.txg > link.txg else None

    def _note_lost_end(self, key: ObjectKey, why: str) -> None:
        self.lost_end = f"{key}: {why}"
        self.notices.append(
            f"{key} cannot be read from the bucket ({why}), but the local state has its txg:"
            " the next txg of a mount for writing is a complete image of the local state"
        )

    def _replace(self, db: Database, exc: OlderBucketError) -> list[Txg]:
        """Prepare the local state to replace a different history in the bucket."""
        db.begin_local()
        # Drop the attempt, which may refer to a lost txg; the next image contains its changes.
        pending.clear_outbox(db)
        db.commit()
        self.lost_end, self.is_put_back, self.replaces = exc.what, True, True
        return []

    def _older(self, link: Link, why: str) -> OlderBucketError:
        """Return the error for a bucket in which this host's last changelog is missing."""
        if not self._mends:
            return OlderBucketError(self._store.url, link.txg, why)
        remedy = (
            "move the state directory away. To publish the local state instead, although another"
            " host may have written since, run s3fs-meta fsck -y --publish-local"
        )
        return OlderBucketError(self._store.url, link.txg, why, remedy)

    async def _why_lost(self, db: Database, link: Link) -> str:
        """Return why the changelog at a chain position cannot be read, or "" if it can be read.

        Raises:
            OlderBucketError: the changelog can be read, but differs from the changelog that this
                host knows.
        """
        try:
            data = await chain.bytes_of(self._store, link.txg)
            if content_hash(data) == link.hash:
                return ""
            await in_thread(changelog_codec.decode, key_of(link.txg), data, self._keyring)
        except NewerFormatError:
            pass
        except ObjectMissingError:
            return "the object is missing"
        except FormatError as exc:
            return exc.what
        if lease_proof.took_last(db, self._lease) and not await self._follows_there(link.txg):
            return f"the changelog does not contain the hash of {key_of(Txg(link.txg - 1))}"
        raise self._older(link, "the bucket has a different txg with this number")

    async def _follows_there(self, txg: Txg) -> bool:
        """Return whether a txg's changelog records the hash of the bucket's previous changelog.

        If the result is false, only this changelog was replaced, and the bucket was not reset. The
        result is also true if one of the two changelogs cannot be read. It is also true if the
        later changelog is a fence record, which may refer to an earlier chain position.
        """
        uuid = self._superblock.uuid
        try:
            found = await chain.fetch(self._store, self._keyring, uuid, txg)
            before = await chain.fetch(self._store, self._keyring, uuid, Txg(txg - 1))
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            return True
        changelog = found.changelog
        return changelog.kind is Kind.FENCE or changelog.previous == before.link.hash

    async def _names(self, link: Link) -> bool:
        """Return whether the next changelog records *link* as its predecessor, by its hash."""
        try:
            await chain.fetch_next(self._store, self._keyring, self._superblock.uuid, link)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            return False
        return True

    async def _leave_unknown(self, db: Database, link: Link) -> Database | None:
        """Record that local state will not be used, because its changelog was deleted or lost."""
        first = await chain.listed_from(self._store, Txg(0), 1)
        is_reclaimed = bool(first) and (first[0] > link.txg or await self._is_passed(link.txg))
        return self._reject(db, _LONG_AGO, keep=not is_reclaimed)

    async def _is_passed(self, txg: Txg) -> bool:
        """Return whether a txg is below the retention floor, so its changelog may be deleted."""
        uuid = self._superblock.uuid
        return txg < await chain.floor_after(self._store, self._keyring, uuid, txg)

    async def _adopt_fence_of_mend(self, db: Database, link: Link) -> Link:
        """Adopt an interrupted repair's fence record as this host's position if the bucket has it.

        The txg number of this record is above all used numbers, so the record usually does not
        directly follow the chain position in the rows.
        """
        if abandoned_txgs.wanted(db) is None:
            return link
        try:
            attempt = pending.outbox(db)
            if attempt is None:
                return link
            txg, data = attempt
            is_there = (
                _is_fence(txg, data, self._keyring)
                and await chain.bytes_of(self._store, txg) == data
            )
        except (FormatError, ObjectMissingError):  # ``require_attempt`` reports a damaged record
            return link
        if not is_there:
            return link
        ours = await in_thread(chain.link_of, txg, data, self._keyring)
        db.begin_local()
        chain.adopt_attempt(db, ours)
        db.commit()
        return ours

    async def _adopt_attempt(
        self, db: Database, link: Link, newer: list[Txg]
    ) -> tuple[Link, list[Txg]]:
        """If the bucket has the changelog that this host last tried to upload, adopt its position.

        A damaged object with the attempt's key is treated as this host's object if no other host
        can have written it.
        """
        attempt = pending.outbox(db) if newer else None
        if attempt is None or newer[0] != attempt[0]:
            return link, newer
        txg, data = attempt
        ours = await in_thread(chain.link_of, txg, data, self._keyring)
        try:
            why = await self._why_lost(db, ours)
        except OlderBucketError:
            return link, newer
        if why and not (newer == [txg] and lease_proof.took_last(db, self._lease)):
            return link, newer
        if why:
            self._note_lost_end(key_of(txg), why)
        db.begin_local()
        chain.adopt_attempt(db, ours)
        db.commit()
        return ours, newer[1:]

    def _drop_fence(self, db: Database) -> None:
        """Remove an attempted fence record, which contains no changes. The call blocks.

        If the store applies the delayed upload of the record later, this host replays the record
        like the record of another host.
        """
        chain.require_attempt(db, self._keyring)
        attempt = pending.outbox(db)
        if attempt is None:
            return
        if _is_fence(*attempt, self._keyring):
            db.begin_local()
            chain.drop_fence(db)
            db.commit()

    def _reject(
        self,
        db: Database,
        why: str,
        *,
        link: Link | None = None,
        keep: bool = False,
        intact: bool = True,
    ) -> Database | None:
        """Record that the local database cannot be used, and why; return None."""
        shipped = intact and is_settled(db)
        # If the user wanted to publish the state, keep it, so that files can be copied out of it.
        self.left = ReplacedState(
            db, why, link, keep or not shipped or self._publishes, shipped, intact
        )
        return None


def is_settled(db: Database) -> bool:
    """Return whether the bucket has all blocks, changelogs and changes of the local state."""
    return pending.outbox(db) is None and not _has_unsent(db)


def needs_no_lease(db: Database, keyring: Keyring) -> bool:
    """Return whether another host may take the lease, because the bucket has all changes.

    An unsent fence record does not count, because it contains no changes. If the next txg must be
    an image, the result is false, because another host could replace the state in this image.

    Raises:
        DatabaseError, FormatError: the rows cannot be read.
    """
    attempt = pending.outbox(db)
    if attempt is not None and not _is_fence(*attempt, keyring):
        return False
    return abandoned_txgs.wanted(db) is None and not _has_unsent(db)


def _has_unsent(db: Database) -> bool:
    """Return whether there are dirty blocks, or changes that no changelog contains."""
    waiting = cached_blocks.in_state(db, BlockState.DIRTY, 1) + cached_blocks.in_state(
        db, BlockState.SEALED, 1
    )
    return bool(waiting) or pending.has_news(db)


def _is_fence(txg: Txg, data: bytes, keyring: Keyring) -> bool:
    return changelog_codec.decode(key_of(txg), data, keyring).kind is Kind.FENCE


def _why_kept(left: ReplacedState, restored: Path) -> str:
    """Return why fully uploaded state must be quarantined, or "" to drop it. The call blocks."""
    newest = Database.open(restored, Pragmas(), read_only=True)
    try:
        if last_copies.exist(left.db, newest):
            return "the cache has copies of content that is lost or damaged in the bucket"
        if left.link is None and _is_of_replaced_history(left.db, newest):
            return (
                "a repair has since replaced the history in the bucket, perhaps without some files"
            )
    finally:
        newest.close()
    if left.link is None and histories.contradict(left.db, restored):
        return "the bucket was reset to an older state, which does not have all local changes"
    return ""


def _is_of_replaced_history(db: Database, newest: Database) -> bool:
    """Return whether a local database is older than the last repair that replaced the history.

    The repair may have lost names or abandoned txgs. A database without a chain position counts as
    older.
    """
    link = chain.recorded(db)
    rebuilt, _next_pack = properties.renumbered_packs(newest)
    return link is None or link.txg < max(rebuilt, properties.replaced_history(newest))


def is_exact(db: Database) -> bool:
    """Return whether later changelogs can be applied: the rows equal the txg at their position.

    Packs that no changelog lists yet make the result false, because another host may have used
    their IDs.
    """
    is_shipped = not pending.has_pack_news(db) and not packs.uploading(db)
    return is_settled(db) and pending.is_empty(db) and is_shipped
