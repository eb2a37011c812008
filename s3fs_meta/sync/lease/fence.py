"""Becoming the writer: take the lease with a new epoch, then append a fence record to the chain.

Owns: the order of these two steps, for a mount for writing and for the promotion of a follower.
Does not know: how the txgs of the chain are applied to a database.
Keeps: the holder name and the new nonce are synced to this host's disk before the lease object
contains them. The fence record is synced to this host's disk before it is sent.
A fence record occupies the key of the former writer's next changelog, so that writer's next append
fails. Txgs that the former writer appended before the fence record are applied first.
Design: docs/design/durability.md, "One writer".
"""

import logging
import secrets
from collections.abc import Awaitable, Callable

from s3fs_meta.background_task import in_thread
from s3fs_meta.clock import Clock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.changelog import NONCE_BYTES, Changelog, Kind
from s3fs_meta.codec.image import NO_HASH
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import (
    FencedError,
    FormatError,
    HeldError,
    NewerFormatError,
    ObjectMissingError,
)
from s3fs_meta.limits import EPOCH_LEAP_MAX, FENCE_ROUNDS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.schema import SCHEMA_VERSION
from s3fs_meta.meta.tables import local_state, pending
from s3fs_meta.model import Epoch, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.abandoned_txgs import NOTHING, Behind
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.host_state.state_dir import StateDir
from s3fs_meta.sync.lease import lease_proof
from s3fs_meta.sync.lease.keeper import Hold, LeaseKeeper

_log = logging.getLogger(__name__)


class Fencer:
    """Makes this host the writer of one filesystem."""

    def __init__(
        self,
        store: ObjectStore,
        keyring: Keyring,
        uuid: str,
        state_dir: StateDir,
        keeper: LeaseKeeper,
        clock: Clock,
        hook: Hook,
    ) -> None:
        """Create the fencer for one state directory; *keeper* must have read the lease."""
        self._store = store
        self._keyring = keyring
        self._uuid = uuid
        self._state_dir = state_dir
        self._keeper = keeper
        self._clock = clock
        self._hook = hook

    async def take_over(
        self,
        db: Database,
        held: Hold,
        *,
        force: bool,
        catch_up: Callable[[Database], Awaitable[Database]],
        behind: Callable[[], Behind] = lambda: NOTHING,
    ) -> Database:
        """Take the lease and append a fence record; return the database that includes the record.

        Args:
            db: a database with the last txg of the chain, perhaps with one attempted txg after it.
            held: this host's proof of a lease.
            force: take the lease from any host that holds it.
            catch_up: brings a database to the last txg of the chain; may return another database.
            behind: if txgs are abandoned, returns the lower bounds for the fence record's txg and
                time.

        Raises:
            HeldError: another host holds the lease, or repeatedly appends to the chain.
            FormatError: the epoch of the lease is higher than any host can have reached.
        """
        chain_epoch = await self._require_epoch(db)
        held = lease_proof.with_new_nonce(held, self._keeper.lease)
        await in_thread(lease_proof.keep, self._state_dir, held)
        db.begin_local()
        lease_proof.note(db, held)
        await _commit_synced(db)
        self._hook("nonce noted")
        replaced = await self._keeper.acquire(held, force=force, above=chain_epoch)
        self._hook("lease taken")
        db.begin_local()
        lease_proof.note_replaced(db, replaced)
        local_state.put(db, "epoch", str(self._keeper.epoch))
        await _commit_synced(db)
        self._hook("epoch noted")
        for _ in range(FENCE_ROUNDS_MAX):
            if await self._send(db) and await self._append(db, behind()):
                return db
            db = await catch_up(db)
            await self._require_hold()
        raise HeldError(
            f"another host repeatedly appends to the chain in {self._store.url}; unmount it there"
        )

    async def _require_hold(self) -> None:
        """Raise HeldError if another host has replaced this host's lease.

        The last appended txg may be the fence record of that host. A later fence record of this
        host would end that host's chain, and this host could not write either.
        """
        try:
            if self._keeper.fenced is not None:  # ``catch_up`` noticed that the lease was lost
                raise self._keeper.fenced
            await self._keeper.require_hold()
        except FencedError as exc:
            raise HeldError(f"another host took the lease at the same time: {exc}") from exc

    async def _require_epoch(self, db: Database) -> Epoch:
        """Return the epoch of the chain's last changelog, or the one in this host's rows if higher.

        Raises:
            FormatError: the epoch of the lease is far too high; only fsck -y replaces the lease.
            NewerFormatError: a newer version of the program wrote the last changelog; nothing was
                changed.
        """
        lease, link = self._keeper.lease, chain.recorded(db)
        last = Epoch(local_state.number(db, "epoch") or 0)
        if link is not None and link.hash != NO_HASH:
            try:
                fetched = await chain.fetch(self._store, self._keyring, self._uuid, link.txg)
                last = max(last, fetched.changelog.epoch)
            except NewerFormatError:
                raise
            except (FormatError, ObjectMissingError) as exc:
                _log.info(
                    "skipping the chain's last changelog, whose epoch cannot be read: %s", exc
                )
        if lease.epoch - last > EPOCH_LEAP_MAX:
            why = f"the lease has epoch {lease.epoch}, but the chain ends with epoch {last}"
            raise FormatError(lease_codec.KEY, f"{why}; s3fs-meta fsck -y makes a new lease")
        return last

    async def _append(self, db: Database, behind: Behind) -> bool:
        """Sync a fence record to disk and append it; return False if another object has its key."""
        link = behind.link or chain.recorded(db)
        assert link is not None, "every opened database must have a link"
        fence = Changelog(
            kind=Kind.FENCE,
            txg=max(link.next_txg, Txg(behind.txg + 1)),
            epoch=self._keeper.epoch,
            nonce=secrets.token_hex(NONCE_BYTES),
            uuid=self._uuid,
            schema_version=SCHEMA_VERSION,
            created_ns=max(self._clock.now_ns(), link.created_ns + 1, behind.created_ns + 1),
            previous=link.hash,
            floor=link.floor,
        )
        db.begin_local()
        pending.put_outbox(db, fence.txg, changelog_codec.encode(fence, self._keyring))
        await _commit_synced(db)
        self._hook("fence attempted")
        if await self._send(db):
            return True
        db.begin_local()
        pending.clear_outbox(db)  # drop it without loss, because a fence record contains no change
        db.commit()
        return False

    async def _send(self, db: Database) -> bool:
        """Append the attempted changelog, if there is one; return False if its number is taken."""
        attempt = pending.outbox(db)
        if attempt is None:
            return True
        await in_thread(db.sync_wal)
        txg, data = attempt
        if not await chain.append(self._store, txg, data):
            return False
        self._hook("fence put")
        link = await in_thread(chain.link_of, txg, data, self._keyring)
        db.begin_local()
        chain.adopt_attempt(db, link)
        db.commit_durable()
        self._hook("fence confirmed")
        return True


async def _commit_synced(db: Database) -> None:
    db.commit_durable()
    await in_thread(db.sync_wal)
