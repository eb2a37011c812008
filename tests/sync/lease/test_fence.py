"""Takeover: a host acquires the lease and appends a fence record."""

import contextlib

import pytest

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.changelog import Kind, key_of
from s3fs_meta.errors import FencedError, HeldError, NewerFormatError
from s3fs_meta.limits import FENCE_ROUNDS_MAX
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import pending
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.hooks import no_hook
from s3fs_meta.sync.lease.fence import Fencer
from s3fs_meta.sync.lease.keeper import Hold, LeaseKeeper, refuse_held
from s3fs_meta.sync.session import Session
from tests.sync.conftest import Power


async def fencer_beside(session: Session) -> Fencer:
    """Return a Fencer for another host that uses the state directory of a session."""
    opened, clock = session.volume, SystemClock()
    keeper = LeaseKeeper(opened.store, clock)
    await keeper.read()
    uuid = opened.superblock.uuid
    return Fencer(opened.store, opened.keyring, uuid, opened.state_dir, keeper, clock, no_hook)


async def same(db: Database) -> Database:
    """Return the database unchanged; no changelog is applied."""
    return db


async def test_held_lease_is_acquired_only_by_its_holder_or_by_force(power: Power) -> None:
    """Another host needs force to acquire a lease that its holder has not released."""
    async with power.session("a") as session:
        lease = session.volume.keeper.lease
        with pytest.raises(HeldError):
            refuse_held(lease, Hold("another", ()), force=False)
        refuse_held(lease, Hold("another", ()), force=True)
        assert lease.nonce is not None
        refuse_held(lease, Hold(lease.holder, (lease.nonce,)), force=False)
        await session.flush()
        await session.close()
    async with power.session("b") as session:
        assert session.volume.keeper.epoch == lease.epoch + 1


async def test_no_epoch_is_used_twice_after_an_older_lease_is_restored(power: Power) -> None:
    """If an older lease was restored, the next epoch follows the latest epoch in the chain."""
    first = power.store.objects[lease_codec.KEY]
    async with power.session("a") as session:
        await session.close()
    async with power.session("a") as session:
        used = session.volume.keeper.epoch
        await session.flush()
        await session.close()
    power.store.objects[lease_codec.KEY] = first

    async with power.session("b") as session:
        assert session.volume.keeper.epoch == used + 1


async def test_fence_record_follows_the_last_changelog(power: Power) -> None:
    """The fence record gets the number of the next txg of the former writer."""
    async with power.session("a", tasks=False) as session:
        opened = session.volume
        before = chain.recorded(session.db)
        assert before is not None

        fencer = await fencer_beside(session)
        await fencer.take_over(session.db, Hold("other", ()), force=True, catch_up=same)

        after = chain.recorded(session.db)
        assert after is not None
        assert after.txg == before.next_txg
        found = await chain.fetch_next(opened.store, opened.keyring, opened.superblock.uuid, before)
        assert found.link == after
        assert found.changelog.kind is Kind.FENCE
        assert pending.outbox(session.db) is None
        with pytest.raises(FencedError):
            await session.shipper.ship_for_image(lambda *_: None)


async def test_takeover_fails_if_another_host_continues_to_append_changelogs(power: Power) -> None:
    """A takeover gives up after some retries if another host appends changelogs."""
    async with power.session("a", tasks=False) as session:
        rounds = 0

        async def behind(db: Database) -> Database:
            nonlocal rounds
            rounds += 1
            return db

        before = chain.recorded(session.db)
        fencer = await fencer_beside(session)
        await fencer.take_over(session.db, Hold("one", ()), force=True, catch_up=same)
        session.db.begin_local()
        assert before is not None
        # Simulate that this host has not seen the fence record of the first takeover.
        chain.record(session.db, before)
        session.db.commit()

        fencer = await fencer_beside(session)
        with pytest.raises(HeldError, match="repeatedly appends"):
            await fencer.take_over(session.db, Hold("two", ()), force=True, catch_up=behind)

        assert rounds == FENCE_ROUNDS_MAX
        assert pending.outbox(session.db) is None


@pytest.mark.parametrize("newer", [True, False])
async def test_changelog_of_a_newer_program_stops_a_takeover(power: Power, newer: bool) -> None:
    """A takeover succeeds despite a damaged changelog, but not if a newer program wrote it."""
    async with power.session("a", tasks=False) as session:
        fencer = await fencer_beside(session)
        link = chain.recorded(session.db)
        assert link is not None
        key = key_of(link.txg)
        damaged = bytearray(power.store.objects[key])
        damaged[-1] ^= 64
        if newer:
            damaged[9] ^= 64  # Byte 9 of an envelope belongs to the version field.
        power.store.objects[key] = bytes(damaged)
        before = dict(power.store.objects)

        with contextlib.ExitStack() as stack:
            if newer:
                stack.enter_context(pytest.raises(NewerFormatError))
            await fencer.take_over(session.db, Hold("other", ()), force=True, catch_up=same)

        assert (power.store.objects == before) == newer
