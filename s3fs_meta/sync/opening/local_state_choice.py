"""The choice between the local state of a filesystem and a restore from the bucket.

Owns: the decision, based on the positions of both in the chain of changelogs.
Does not know: the lease, the cache's internals.

    local state             the bucket                  decision
    none                    anything                    restore it
    any                     ends at our link            continue from local state
    nothing unshipped       has later txgs              apply them
    something unshipped     ends at our link            a follower: refuse
    something unshipped     has later txgs              restore; quarantine local state, report it
    any                     lost our link by damage     continue; the next txg is an image
    any                     is older, or another's      refuse; fsck -y may continue, as above

If the bucket has our last attempt, that is our link.
Design: docs/design/durability.md, "At mount".
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import trio

from s3fs_meta import machine
from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Kind, key_of
from s3fs_meta.codec.image import NO_HASH, content_hash
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.lease import Lease
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    OlderBucketError,
    SettingsError,
)
from s3fs_meta.meta import replica
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import cached_blocks, local_state, packs, pending
from s3fs_meta.model import BlockState, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync import last_copies
from s3fs_meta.sync.chain import abandoned_txgs, chain, names
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.chain.replay import NeedsImageError, Replayer
from s3fs_meta.sync.lease import lease_proof
from s3fs_meta.sync.opening import strays
from s3fs_meta.sync.progress import Progress
from s3fs_meta.sync.state_dir import StateDir

ADVICE: Final = (
    "s3fs-meta fsck -y quarantines it and continues from the bucket; s3fs-meta recover-state reads"
    " what was quarantined"
)


class Local(NamedTuple):
    """The local state of a filesystem."""

    db: Database | None
    doubtful: bool  # committed rows may be lost: see ``volatility``


def examine(
    state_dir: StateDir, pragmas: Pragmas, superblock: Superblock, *, repairing: bool
) -> Local:
    """Open the local database if there is one; nothing is moved.

    Raises:
        SettingsError: the database belongs to another filesystem.
        FormatError: the database is damaged.
    """
    if not state_dir.database.exists():
        return Local(None, doubtful=False)
    db = Database.open(state_dir.database, pragmas, repairing=repairing)
    if local_state.get(db, "uuid") not in {None, superblock.uuid}:
        db.close()
        raise SettingsError(
            f"{state_dir.path} holds the state of another filesystem that was at this URL; "
            "move it away, or choose another with --cachedir"
        )
    return Local(db, doubtful=_is_doubtful(db))


def is_damage_of(exc: FormatError, state_dir: StateDir) -> bool:
    """Return whether an error is about damage of the local database."""
    return exc.key == str(state_dir.database) and not isinstance(exc, NewerFormatError)


def with_advice(exc: FormatError) -> FormatError:
    """Return an error about the local database, extended by advice on what to do."""
    what = exc.what if ADVICE in exc.what else f"{exc.what}; {ADVICE}"
    return FormatError(exc.key, what)


@contextlib.contextmanager
def advising(state_dir: StateDir) -> Iterator[None]:
    """Add advice to errors about the local database, also to those raised after opening."""
    try:
        yield
    except FormatError as exc:
        if not is_damage_of(exc, state_dir):
            raise
        raise with_advice(exc) from exc


def volatility(pragmas: Pragmas) -> str:
    """Return the event that may lose committed rows: ``crash``, ``power`` loss or ``nothing``."""
    if pragmas.journal_mode in {"off", "memory"}:
        return "crash"
    return "nothing" if pragmas.survives_power_loss else "power"


def _is_doubtful(db: Database) -> bool:
    """Return whether the last run ended in a way that may lose committed rows with its pragmas."""
    if local_state.get(db, "clean") == "1":
        return False
    volatile = local_state.get(db, "volatile")
    another_boot = local_state.get(db, "boot_id") != machine.this_boot()
    return volatile == "crash" or (volatile == "power" and another_boot)


class Left(NamedTuple):
    """Local state that is replaced as soon as there is another database."""

    db: Database
    why: str
    link: Link | None  # None if the link is unknown or not in the chain
    keep: bool  # True if it may have the only copy of some data


class Rules(NamedTuple):
    """The facts and permissions that the decision depends on."""

    lease: Lease  # as found
    follows: bool = False  # the chosen database must equal the bucket's state exactly
    mends: bool = False  # local state may replace the bucket's, if no other host wrote later
    publishes: bool = False  # local state may replace it even if another host wrote later


class Chooser:
    """Makes the decision for one opening and carries it out."""

    def __init__(
        self,
        store: ObjectStore,
        keyring: Keyring,
        superblock: Superblock,
        state_dir: StateDir,
        clock: Clock,
        progress: Progress,
        rules: Rules,
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._superblock = superblock
        self._state_dir = state_dir
        self._clock = clock
        self._progress = progress
        self._lease = rules.lease
        self._follows = rules.follows
        self._mends = rules.mends
        self._publishes = rules.publishes
        self.left: Left | None = None
        self.lost_end = ""  # why the last txg of the local state cannot be read in the bucket
        # True if the bucket is an older copy, so packs may be missing, too.
        self.is_put_back = False
        self.replaces = False  # True if local state replaces another history in the bucket
        self.notices: list[str] = []  # one-line facts to show to the user

    async def choose(self, local: Local) -> Database | None:
        """Return the local database at the end of the chain, if it can be continued.

        Otherwise it stays unchanged in ``left`` until ``make_way``, because a restore may fail.

        Raises:
            OlderBucketError: the bucket was exchanged; nothing was changed.
            SettingsError: a follower's local state holds changes that are not in the bucket.
            StoreError: the bucket is unavailable; nothing was changed.
        """
        if local.db is None:
            if self._state_dir.has_remains:
                kept = self._state_dir.quarantine_as(str(self._clock.now_ns()))
                self.notices.append(
                    f"remains of an earlier state without its database are kept in {kept}"
                )
            return None
        if local.doubtful:
            why = "a crash under such a journal mode or synchronous=off may have damaged them"
            return self._leave(local.db, why, keep=True)
        link = chain.recorded(local.db)
        if link is None:
            return self._leave(local.db, "it is not known what the bucket had then", keep=True)
        try:
            return await self._compare(local.db, link)
        except BaseException:
            local.db.close()
            raise

    async def make_way(self, restored: Path) -> None:
        """Remove the state in ``left``, or quarantine it if it may be the only copy.

        Args:
            restored: the database that takes its place.
        """
        left, self.left = self.left, None
        if left is None:
            return
        stamp, how = str(self._clock.now_ns()), ""
        if not left.keep and await trio.to_thread.run_sync(_has_last_copies, left.db, restored):
            why = (
                f"{left.why}; it has cached copies of content that is lost or damaged in the bucket"
            )
            left = left._replace(why=why, keep=True)
            how = "--everything "
        if not left.keep:
            try:
                self.notices += await strays.settle(self._state_dir, left.db, self._keyring, stamp)
            finally:
                left.db.close()
            self._state_dir.drop_contents()
            return
        left.db.close()
        kept = self._state_dir.quarantine_as(stamp)
        self.notices.append(
            f"local changes were not continued because {left.why}; they are kept in {kept}, and"
            f" s3fs-meta recover-state {how}copies files out of it"
        )

    async def _compare(self, db: Database, link: Link) -> Database | None:
        link = await self._adopt_fence_of_mend(db, link)
        newer = await self._newer(db, link)
        if newer is None:
            return await self._leave_unknown(db, link)
        link, newer = await self._adopt_attempt(db, link, newer)
        if newer and abandoned_txgs.is_put_back(abandoned_txgs.wanted(db) or ""):
            why = "another host has written since; the bucket has a history without them"
            return self._leave(db, why, keep=True)
        if self._follows or newer:
            await trio.to_thread.run_sync(self._drop_fence, db)
        unsettled = replica.is_unsettled(db)
        if not newer and not unsettled and (not self._follows or is_exact(db)):
            return db
        if not newer and not _is_settled(db):
            raise SettingsError(
                f"{self._state_dir.path} holds changes that are not in the bucket, so it cannot"
                " follow: mount it for writing first, or follow with another --cachedir"
            )
        if not is_exact(db):
            return self._leave(db, "another host has written since", link=link)
        return await self._follow(db, link)

    async def _follow(self, db: Database, link: Link) -> Database | None:
        replayer = Replayer(self._store, self._keyring, self._superblock.uuid, db)
        try:
            await replayer.forward(link, self._progress)
        except NeedsImageError:
            return self._leave(db, "the bucket has a new beginning", link=link)
        except (FormatError, ObjectMissingError) as exc:
            why = f"what came after it cannot be followed: {exc}"
            return self._leave(db, why, link=chain.recorded(db), keep=True)
        self.notices += replayer.notices
        db.begin_local()
        replica.settle(db)
        pending.set_block_floor(db, pending.first_new_block(db))
        db.commit()
        return db

    async def _newer(self, db: Database, link: Link) -> list[Txg] | None:
        """Return the txgs after a link, None if the link's relation to them is unknown.

        Raises:
            OlderBucketError: the bucket lacks the link, or has another txg under its number.
        """
        numbers = await chain.numbers_from(self._store, self._keyring, link.txg)
        newer = [txg for txg in numbers if txg > link.txg]
        if link.hash == NO_HASH:  # the local state is that of an image before the first changelog
            return newer if not newer or newer[0] == link.next_txg else None
        is_listed = link.txg in numbers
        try:
            why = await self._why_lost(db, link) if is_listed else "it is missing"
            if not why:
                return newer
            if newer and newer[0] == link.next_txg and await self._names(link):
                return newer
            if (
                not newer
                and not is_listed
                and not (self._mends and lease_proof.took_last(db, self._lease))
            ):
                raise self._older(link, f"it has no {key_of(link.txg)}")
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
            return None  # other hosts wrote later, and their changelogs are lost
        self._note_lost_end(key_of(link.txg), why)
        return newer

    def _note_lost_end(self, key: ObjectKey, why: str) -> None:
        self.lost_end = f"{key}: {why}"
        self.notices.append(
            f"{key} cannot be read in the bucket ({why}), but the local state has that txg:"
            " the next txg of a mount for writing is a complete image of it"
        )

    def _replace(self, db: Database, exc: OlderBucketError) -> list[Txg]:
        """Let the local state replace the other history that the bucket has."""
        db.begin_local()
        # The predecessor of the next txg may be lost; the image contains its changes.
        pending.clear_outbox(db)
        db.commit()
        self.lost_end, self.is_put_back, self.replaces = exc.what, True, True
        return []

    def _older(self, link: Link, why: str) -> OlderBucketError:
        """Return the error of a bucket that lacks the last link of this host."""
        if not self._mends:
            return OlderBucketError(self._store.url, link.txg, why)
        way_out = (
            "move the state directory away; if not, and the local state shall be the filesystem,"
            " although another host may have written since, s3fs-meta fsck -y --publish-local puts it"
            " into the bucket"
        )
        return OlderBucketError(self._store.url, link.txg, why, way_out)

    async def _why_lost(self, db: Database, link: Link) -> str:
        """Return why the changelog of a link cannot be read, empty if it can.

        Raises:
            OlderBucketError: it can be read, but is not the changelog that this host knows.
        """
        try:
            data = await chain.bytes_of(self._store, link.txg)
            if content_hash(data) == link.hash:
                return ""
            await trio.to_thread.run_sync(
                changelog_codec.decode, key_of(link.txg), data, self._keyring
            )
        except NewerFormatError:
            pass
        except ObjectMissingError:
            return "it is missing"
        except FormatError as exc:
            return exc.what
        if lease_proof.took_last(db, self._lease) and not await self._follows_there(link.txg):
            return f"it does not follow {key_of(Txg(link.txg - 1))}"
        raise self._older(link, "another txg has that number there")

    async def _follows_there(self, txg: Txg) -> bool:
        """Return whether the changelog of a txg names the hash of the one before it in the bucket.

        If not, that object was exchanged, not the bucket. The answer is yes, too, if one of the two
        cannot be read, and for a fence record, which may name an earlier link.
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
        """Return whether the changelog after a link names it."""
        try:
            await chain.fetch_next(self._store, self._keyring, self._superblock.uuid, link)
        except NewerFormatError:
            raise
        except (FormatError, ObjectMissingError):
            return False
        return True

    async def _leave_unknown(self, db: Database, link: Link) -> Database | None:
        """Leave state whose link is not in the chain: its changelog was deleted or lost."""
        first = await chain.listed_from(self._store, Txg(0), 1)
        is_reclaimed = bool(first) and first[0] > link.txg
        return self._leave(db, "another host has written since, long ago", keep=not is_reclaimed)

    async def _adopt_fence_of_mend(self, db: Database, link: Link) -> Link:
        """Adopt the fence record of an interrupted mend if the bucket has it.

        Its number is above all that were used, so it does not follow the link of the rows directly.
        """
        attempt = pending.outbox(db)
        if attempt is None or abandoned_txgs.wanted(db) is None:
            return link
        txg, data = attempt
        kind = changelog_codec.decode(key_of(txg), data, self._keyring).kind
        try:
            is_there = kind is Kind.FENCE and await chain.bytes_of(self._store, txg) == data
        except (FormatError, ObjectMissingError):
            return link
        if not is_there:
            return link
        ours = await trio.to_thread.run_sync(chain.link_of, txg, data, self._keyring)
        db.begin_local()
        chain.record_own(db, ours)
        pending.clear_outbox(db)
        db.commit()
        return ours

    async def _adopt_attempt(
        self, db: Database, link: Link, newer: list[Txg]
    ) -> tuple[Link, list[Txg]]:
        """Adopt our last attempt as our link if the bucket has it.

        A damaged object under its name counts as our attempt if no other host can have written it.
        """
        attempt = pending.outbox(db)
        if attempt is None or not newer or newer[0] != attempt[0]:
            return link, newer
        txg, data = attempt
        ours = await trio.to_thread.run_sync(chain.link_of, txg, data, self._keyring)
        try:
            why = await self._why_lost(db, ours)
        except OlderBucketError:
            return link, newer
        if why and not (newer == [txg] and lease_proof.took_last(db, self._lease)):
            return link, newer
        if why:
            self._note_lost_end(key_of(txg), why)
        db.begin_local()
        chain.record_own(db, ours)
        pending.clear_outbox(db)
        db.commit()
        return ours, newer[1:]

    def _drop_fence(self, db: Database) -> None:
        """Forget a fence record that is not in the bucket; it contains no changes. In a thread.

        If the store applies its upload later, it is replayed like another host's record.
        """
        attempt = pending.outbox(db)
        if attempt is None:
            return
        txg, data = attempt
        if changelog_codec.decode(key_of(txg), data, self._keyring).kind is Kind.FENCE:
            db.begin_local()
            pending.clear_outbox(db)
            db.commit()

    def _leave(
        self, db: Database, why: str, *, link: Link | None = None, keep: bool = False
    ) -> Database | None:
        """Record that the local database cannot be continued, and why; return None."""
        self.left = Left(db, why, link, keep or not _is_settled(db))
        return None


def _is_settled(db: Database) -> bool:
    """Return whether the local state has no blocks, attempts or news that the bucket lacks."""
    waiting = cached_blocks.in_state(db, BlockState.DIRTY, 1) + cached_blocks.in_state(
        db, BlockState.SEALED, 1
    )
    return not waiting and pending.outbox(db) is None and not pending.has_news(db)


def _has_last_copies(db: Database, restored: Path) -> bool:
    """Return whether cached blocks may be the last copies of their content. In a thread."""
    newest = Database.open(restored, Pragmas(), read_only=True)
    try:
        return last_copies.exist(db, newest)
    finally:
        newest.close()


def is_exact(db: Database) -> bool:
    """Return whether the rows equal those of their link, so that later changelogs fit them.

    Packs that no changelog lists yet may have IDs that another host has used for its own packs.
    """
    is_shipped = not pending.has_pack_news(db) and not packs.uploading(db)
    return _is_settled(db) and pending.is_empty(db) and is_shipped
