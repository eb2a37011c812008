"""The lease: one writer, by compare-and-set."""

from dataclasses import replace

import pytest

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.lease import Head
from s3fs_meta.errors import FencedError, HeldError, UnfinishedFilesystemError
from s3fs_meta.model import ObjectKey, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.lease import LeaseKeeper

HEAD = Head(Txg(3), ObjectKey("image/000000000003-1-00112233aabbccdd/manifest"), "ab" * 32)


def keeper_of(store: MemoryStore, holder: str) -> LeaseKeeper:
    return LeaseKeeper(store, SystemClock(), holder=holder, conditional=True)


@pytest.fixture
async def store() -> MemoryStore:
    memory = MemoryStore()
    await keeper_of(memory, "mkfs").create(None)
    return memory


async def test_every_acquisition_raises_the_epoch(store: MemoryStore) -> None:
    """A released lease is taken under the next epoch."""
    first, second = keeper_of(store, "a"), keeper_of(store, "b")

    await first.acquire(force=False)
    await first.release()
    await second.acquire(force=False)

    assert (first.epoch, second.epoch) == (1, 2)


async def test_held_lease_is_refused_with_its_holder(store: MemoryStore) -> None:
    """The refusal names the host and the way out, and changes nothing."""
    await keeper_of(store, "a").acquire(force=False)
    before = dict(store.objects)

    with pytest.raises(HeldError, match="held by host .* since .*--force-takeover"):
        await keeper_of(store, "b").acquire(force=False)

    assert store.objects == before


async def test_own_lease_is_taken_again_without_waiting(store: MemoryStore) -> None:
    """After its own crash the same state directory goes on under a new epoch."""
    await keeper_of(store, "a").acquire(force=False)

    again = keeper_of(store, "a")
    await again.acquire(force=False)

    assert again.epoch == 2


async def test_taken_over_holder_is_fenced(store: MemoryStore) -> None:
    """After a takeover the old holder can neither move the head nor release."""
    old, new = keeper_of(store, "a"), keeper_of(store, "b")
    await old.acquire(force=False)
    await new.acquire(force=True)

    with pytest.raises(FencedError, match="epoch 1 was ended by epoch 2"):
        await old.move_head(HEAD)
    with pytest.raises(FencedError):
        await old.release()

    assert (await new.read()).head is None
    assert not (await new.read()).released


async def test_head_survives_release_and_acquisition(store: MemoryStore) -> None:
    """The next holder finds the head that the last one set."""
    first, second = keeper_of(store, "a"), keeper_of(store, "b")
    await first.acquire(force=False)
    await first.move_head(HEAD)
    await first.release()

    await second.acquire(force=False)

    assert second.lease.head == HEAD


async def test_lost_reply_of_our_own_write_is_recognised(store: MemoryStore) -> None:
    """A compare-and-set that happened although its reply was lost is ours, not a lost race."""
    keeper = keeper_of(store, "a")
    await keeper.acquire(force=False)
    keeper._etag = "of an older version"  # noqa: SLF001 - as after a retry that finds 412

    with pytest.raises(FencedError):  # other content: somebody else's
        await keeper.move_head(HEAD)
    keeper._etag = "of an older version"  # noqa: SLF001


    ours = replace(keeper.lease, head=HEAD)
    store.objects[lease_codec.KEY] = lease_codec.encode(ours)
    await keeper.move_head(HEAD)

    assert keeper.lease.head == HEAD


async def test_missing_lease_is_an_interrupted_mkfs() -> None:
    """A superblock without a lease says what to do."""
    with pytest.raises(UnfinishedFilesystemError, match="destroy"):
        await keeper_of(MemoryStore(), "a").read()


async def test_unconditional_store_is_written_blindly(store: MemoryStore) -> None:
    """Where the user accepted it, no condition is used."""
    blind = LeaseKeeper(store, SystemClock(), holder="a", conditional=False)
    await blind.acquire(force=False)
    await keeper_of(store, "b").acquire(force=True)

    await blind.move_head(HEAD)

    assert (await blind.read()).head == HEAD
