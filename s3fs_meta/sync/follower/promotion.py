"""Promotion: a follower catches up with the bucket, and then becomes the writer.

Owns: the order of the steps: check the lease, catch up, take the lease, append the fence record,
recount the totals that no changelog contains.
Does not know: how a session becomes a writer's session, FUSE.
Keeps: after a crash, the next mount or promotion on this host recognises the lease as its own, and
takes it. If the fence record was appended, it continues from that record.
Tasks: one promotion at a time, while the follower is paused and the mount serves its last txg.
"""

from s3fs_meta.background_task import in_thread
from s3fs_meta.meta import next_numbers, replica
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import pending
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.follower.follower import Follower
from s3fs_meta.sync.hooks import Hook
from s3fs_meta.sync.lease import lease_proof
from s3fs_meta.sync.lease.fence import Fencer
from s3fs_meta.sync.lease.keeper import refuse_held
from s3fs_meta.sync.volume import Volume


async def take_over(
    volume: Volume, follower: Follower, hook: Hook, *, force: bool, unsafe: bool
) -> Link:
    """Make this host the writer; return the chain position of its fence record.

    Args:
        volume: the volume of a follower.
        follower: the follower of the volume; the caller is inside ``Follower.paused``.
        hook: called after each named step.
        force: take the lease from any host that holds it.
        unsafe: accept a store that ignores conditional writes.

    Raises:
        HeldError, UnconditionalStoreError: this host must not write; the mount stays a follower.
        StoreError: the store is unavailable; the mount stays a follower and can be promoted later.
        MetadataError: the next numbers of the last txg are wrong; the mount stays a follower.
    """
    keeper = volume.keeper
    # Use the applier's connection, through which a failed promotion may have recorded a nonce.
    # The mount's own connection sees that row only after the next txg.
    applier = await follower.applier()
    held = lease_proof.known(applier, volume.state_dir, volume.keyring, doubtful=False)
    lease = await keeper.read()
    refuse_held(lease, held, force=force)
    unsafe = unsafe or volume.superblock.unsafe_single_writer
    await keeper.require_conditions(unsafe_allowed=unsafe)

    await volume.clock.compare()
    db = volume.db

    async def catch_up(_db: Database) -> Database:
        nonlocal db
        await follower.catch_up(must_list=True)
        db = await follower.applier()
        next_numbers.require_valid(db)
        return db

    await catch_up(db)
    await lease_proof.refuse_copy(volume.store, volume.keyring, volume.uuid, lease, db, force=force)
    if pending.outbox(db) is not None:  # an interrupted promotion has recorded a fence record
        db.begin_local()
        chain.drop_fence(db)
        db.commit()
    fencer = Fencer(
        volume.store,
        volume.keyring,
        volume.uuid,
        volume.state_dir,
        keeper,
        volume.clock,
        hook,
    )
    db = await fencer.take_over(db, held, force=force, catch_up=catch_up)
    await in_thread(_settle, db)
    hook("totals settled")
    link = chain.recorded(db)
    assert link is not None, "the database must record the link of the fence record"
    return link


def _settle(db: Database) -> None:
    """Recount the totals that a writer maintains."""
    db.begin_local()
    replica.settle_at_txg(db)
    db.commit()
    db.sync_wal()
