"""What is here of a filesystem, and whether to go on from it.

Owns: the decision between local state and bucket, by their places in the chain of changelogs.
Does not know: the lease, the cache's inner life.

    local state             the bucket                  decision
    none                    anything                    restore it
    any                     ends where we know          go on from local state
    nothing unshipped       goes on                     follow it
    something unshipped     ends where we know          a follower: refuse
    something unshipped     goes on                     set local state aside, say where, restore
    any                     is older, or another's      refuse

An attempt of ours that the bucket has is a part of what we know.
Design: docs/design/durability.md, "At mount".
"""

from typing import NamedTuple

import trio

from s3fs_meta import boot
from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec.changelog import Kind, key_of
from s3fs_meta.codec.image import NO_HASH, content_hash
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import (
    FormatError,
    NewerFormatError,
    ObjectMissingError,
    OlderBucketError,
    SettingsError,
)
from s3fs_meta.meta import cached, local_state, packs, pending, replica
from s3fs_meta.meta.database import Database
from s3fs_meta.meta.pragmas import Pragmas
from s3fs_meta.model import BlockState, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync import chain
from s3fs_meta.sync.chain import Link
from s3fs_meta.sync.progress import Progress
from s3fs_meta.sync.replay import NeedsImageError, Replayer
from s3fs_meta.sync.state_dir import StateDir


class Local(NamedTuple):
    """What is here of a filesystem."""

    db: Database | None
    doubtful: bool  # the last run ended in a way that its settings do not survive


def look(
    state_dir: StateDir, pragmas: Pragmas, superblock: Superblock, *, repairing: bool
) -> Local:
    """Open the local database if there is one; nothing is moved.

    Raises:
        SettingsError: it is another filesystem's.
        FormatError: the database is damaged.
    """
    if not state_dir.database.exists():
        return Local(None, doubtful=False)
    try:
        db = Database.open(state_dir.database, pragmas, repairing=repairing)
    except NewerFormatError:
        raise
    except FormatError as exc:
        if repairing:
            raise
        advice = "s3fs-meta fsck -y quarantines it and goes on from the bucket"
        raise FormatError(exc.key, f"{exc.what}; {advice}") from exc
    if local_state.get(db, "uuid") not in {None, superblock.uuid}:
        db.close()
        raise SettingsError(
            f"{state_dir.path} holds the state of another filesystem that was at this URL; "
            "move it away, or choose another with --cachedir"
        )
    return Local(db, doubtful=_is_doubtful(db))


def volatility(pragmas: Pragmas) -> str:
    """Return what makes the rows doubtful: any ``crash``, a loss of ``power``, or ``nothing``."""
    if pragmas.journal_mode in {"off", "memory"}:
        return "crash"
    return "nothing" if pragmas.survives_power_loss else "power"


def _is_doubtful(db: Database) -> bool:
    """Return whether the last run ended in a way that its settings do not survive."""
    if local_state.get(db, "clean") == "1":
        return False
    volatile = local_state.get(db, "volatile")
    another_boot = local_state.get(db, "boot_id") != boot.this_boot()
    return volatile == "crash" or (volatile == "power" and another_boot)


class Chooser:
    """Decides for one opening, and does what it decides."""

    def __init__(
        self,
        store: ObjectStore,
        keyring: Keyring,
        superblock: Superblock,
        state_dir: StateDir,
        clock: Clock,
        progress: Progress,
        *,
        follows: bool = False,
    ) -> None:
        """Make a chooser for one opening.

        Args:
            follows: what is returned must be exactly what the bucket has.
        """
        self._store = store
        self._keyring = keyring
        self._superblock = superblock
        self._state_dir = state_dir
        self._clock = clock
        self._progress = progress
        self._follows = follows
        self.notices: list[str] = []  # one-line facts that the user must hear

    async def choose(self, local: Local) -> Database | None:
        """Return the local database if it can be gone on from, brought to where the bucket is.

        Otherwise what is here is out of the way.

        Raises:
            OlderBucketError: the bucket was exchanged; nothing was changed.
            SettingsError: what is here and nowhere else keeps it from following.
            StoreError: the bucket cannot be looked at; nothing was changed.
        """
        if local.db is None:
            if self._state_dir.has_remains:
                kept = self._state_dir.set_aside(str(self._clock.now_ns()))
                self.notices.append(
                    f"what is left of an earlier state without its database is kept in {kept}"
                )
            return None
        if local.doubtful:
            why = "a crash under such a journal mode or synchronous=off may have damaged them"
            return self._set_aside(local.db, why)
        link = chain.recorded(local.db)
        if link is None:
            return self._set_aside(local.db, "it is not known what the bucket had then")
        try:
            return await self._compare(local.db, link)
        except BaseException:
            local.db.close()
            raise

    async def _compare(self, db: Database, link: Link) -> Database | None:
        newer = await self._newer(link)
        if newer is None:  # our place in the chain is past its beginning
            return self._leave(db, "another host has written since, long ago")
        link, newer = await self._adopt_attempt(db, link, newer)
        if self._follows or newer:
            await trio.to_thread.run_sync(self._drop_fence, db)
        unsettled = replica.is_unsettled(db)
        if not newer and not unsettled and (not self._follows or _is_exact(db)):
            return db
        if not newer and not _is_settled(db):
            raise SettingsError(
                f"{self._state_dir.path} holds changes that are not in the bucket, so it cannot"
                " follow: mount it for writing first, or follow with another --cachedir"
            )
        if not _is_exact(db):
            return self._leave(db, "another host has written since")
        replayer = Replayer(self._store, self._keyring, self._superblock.uuid, db)
        try:
            await replayer.forward(link, self._progress)
        except NeedsImageError:
            return self._leave(db, "the bucket has a new beginning")
        except (FormatError, ObjectMissingError) as exc:
            return self._leave(db, f"what came after it cannot be followed: {exc}")
        self.notices += replayer.notices
        db.begin_local()
        replica.settle(db)
        pending.set_block_floor(db, pending.first_new_block(db))
        db.commit()
        return db

    async def _newer(self, link: Link) -> list[Txg] | None:
        """Return the txgs after a link, None if nobody can say what is between.

        Raises:
            OlderBucketError: the bucket does not have the link, or another in its place.
        """
        numbers = await chain.numbers_from(self._store, link.txg)
        newer = [txg for txg in numbers if txg > link.txg]
        if link.hash == NO_HASH:  # of an image before the first changelog
            return newer if not newer or newer[0] == link.next_txg else None
        if link.txg not in numbers:
            if newer:
                return None
            raise OlderBucketError(self._store.url, link.txg, f"it has no {key_of(link.txg)}")
        if content_hash(await chain.bytes_of(self._store, link.txg)) != link.hash:
            raise OlderBucketError(self._store.url, link.txg, "another txg has that number there")
        return newer

    async def _adopt_attempt(
        self, db: Database, link: Link, newer: list[Txg]
    ) -> tuple[Link, list[Txg]]:
        """Note that the bucket has our last attempt, if that is so."""
        attempt = pending.outbox(db)
        if attempt is None or not newer or newer[0] != attempt[0]:
            return link, newer
        txg, data = attempt
        if await chain.bytes_of(self._store, txg) != data:
            return link, newer
        link = await trio.to_thread.run_sync(chain.link_of, txg, data, self._keyring)
        db.begin_local()
        chain.record_own(db, link)
        pending.clear_outbox(db)
        db.commit()
        return link, newer[1:]

    def _drop_fence(self, db: Database) -> None:
        """Forget a fence record that is not in the bucket: it holds nothing; in a thread.

        If it gets there after all, it is followed like any other's.
        """
        attempt = pending.outbox(db)
        if attempt is None:
            return
        txg, data = attempt
        if changelog_codec.decode(key_of(txg), data, self._keyring).kind is Kind.FENCE:
            db.begin_local()
            pending.clear_outbox(db)
            db.commit()

    def _leave(self, db: Database, why: str) -> Database | None:
        """The bucket went on without us: drop local state, or keep it aside if it has news."""
        if not _is_settled(db):
            return self._set_aside(db, why)
        db.close()
        self._state_dir.drop_contents()
        return None

    def _set_aside(self, db: Database, why: str) -> Database | None:
        db.close()
        kept = self._state_dir.set_aside(str(self._clock.now_ns()))
        self.notices.append(
            f"local changes were not continued because {why}; they are kept in {kept}, and"
            f" s3fs-meta recover-state copies files out of it"
        )
        return None


def _is_settled(db: Database) -> bool:
    """Return whether nothing here is of worth that the bucket does not have."""
    waiting = cached.in_state(db, BlockState.DIRTY, 1) + cached.in_state(db, BlockState.SEALED, 1)
    return not waiting and pending.outbox(db) is None and not pending.has_news(db)


def _is_exact(db: Database) -> bool:
    """Return whether the rows are those of their place in the chain, so that changes fit them.

    Packs of which nobody was told have numbers that others give, too.
    """
    told = not pending.has_pack_news(db) and not packs.uploading(db)
    return _is_settled(db) and pending.is_empty(db) and told
