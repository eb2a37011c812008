"""The lease: conditional writes ensure that only one host writes at a time."""

from dataclasses import replace

import pytest
import trio
import trio.testing

from s3fs_meta.bucket_errors import LostLeaseError, OlderBucketError
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.lease import UNKNOWN_MACHINE, Head, MachineMarks
from s3fs_meta.errors import (
    FencedError,
    HeldError,
    PreconditionError,
    TransientStoreError,
    UnexpectedStoreError,
    UnfinishedFilesystemError,
)
from s3fs_meta.limits import LEASE_CHECK_S
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ETag, ObjectStore
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.lease.keeper import Hold, LeaseKeeper, new_nonce, refuse_held
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.tasks import held

HEAD = Head(Txg(3), ObjectKey("image/000000000003-1-00112233aabbccdd/manifest"), "ab" * 32)


class Host:
    """A host that can acquire the lease, with its keeper and identity."""

    def __init__(
        self,
        store: ObjectStore,
        holder: str,
        *,
        conditional: bool = True,
        check_s: float = LEASE_CHECK_S,
    ) -> None:
        self.keeper = LeaseKeeper(store, SystemClock(), conditional=conditional, check_s=check_s)
        self.hold = Hold(holder, ())

    async def acquire(self, *, force: bool = False) -> LeaseKeeper:
        """Acquire the lease and return its keeper."""
        self.hold = self.hold._replace(nonces=(*self.hold.nonces, new_nonce()))
        await self.keeper.acquire(self.hold, force=force)
        return self.keeper


@pytest.fixture
async def store() -> MemoryStore:
    """Return a store with the lease of a new filesystem."""
    memory = MemoryStore()
    await LeaseKeeper(memory, SystemClock()).create("mkfs", None)
    return memory


async def test_acquisition_of_a_released_lease_raises_the_epoch(store: MemoryStore) -> None:
    """The first acquisition gets epoch 1, and the next acquisition gets epoch 2."""
    first = await Host(store, "a").acquire()
    await first.release()
    second = await Host(store, "b").acquire()

    assert (first.epoch, second.epoch) == (1, 2)


async def test_lease_held_by_another_host_is_not_acquired(store: MemoryStore) -> None:
    """The error names the holder of the lease and the option --takeover; the lease is unchanged."""
    await Host(store, "a").acquire()
    before = dict(store.objects)

    with pytest.raises(HeldError, match=r"held by host .* since .*--takeover"):
        await Host(store, "b").acquire()

    assert store.objects == before


async def test_host_acquires_its_own_lease_again_without_waiting(store: MemoryStore) -> None:
    """After a crash, a host acquires its own lease with a new epoch and without waiting."""
    first = Host(store, "a")
    await first.acquire()
    again = Host(store, "a")
    again.hold = first.hold

    assert (await again.acquire()).epoch == 2


async def test_each_acquisition_of_the_lease_creates_a_new_nonce(store: MemoryStore) -> None:
    host = Host(store, "a")
    nonces = {(await host.acquire()).lease.nonce for _ in range(3)}

    assert len(nonces) == 3
    assert (await host.keeper.read()).nonce == host.hold.nonces[-1]


async def test_host_treats_a_lease_with_another_nonce_as_the_lease_of_another_host(
    store: MemoryStore,
) -> None:
    """All copies of a state directory have the same holder name, so the nonce is compared."""
    await Host(store, "a").acquire()
    before = dict(store.objects)

    with pytest.raises(HeldError, match=r"held by host .* copy or a backup .*again.*--takeover"):
        await Host(store, "a").acquire()

    assert store.objects == before
    assert (await Host(store, "a").acquire(force=True)).epoch == 2


@pytest.mark.parametrize(
    ("here", "refused"),
    [
        (MachineMarks("aa" * 16, None), False),
        (UNKNOWN_MACHINE, False),
        (MachineMarks("cc" * 16, None), True),
    ],
    ids=["the same", "unknown", "another"],
)
async def test_host_treats_a_lease_of_another_machine_as_the_lease_of_another_host(
    store: MemoryStore, here: MachineMarks, *, refused: bool
) -> None:
    """If the identity of the machine is unknown, the lease counts as written on this machine."""
    host = Host(store, "a")
    host.hold = host.hold._replace(machine=MachineMarks("aa" * 16, "bb" * 16))
    lease = (await host.acquire()).lease
    hold = host.hold._replace(machine=here)

    if refused:
        with pytest.raises(HeldError, match="another machine"):
            refuse_held(lease, hold, force=False)
    else:
        refuse_held(lease, hold, force=False)
    refuse_held(lease, hold, force=True)
    refuse_held(replace(lease, released=True), hold, force=False)


async def test_former_holder_of_the_lease_is_fenced_after_a_takeover(store: MemoryStore) -> None:
    """After a takeover, the former holder can neither change the head nor release the lease."""
    old = await Host(store, "a").acquire()
    new = await Host(store, "b").acquire(force=True)

    with pytest.raises(FencedError, match="epoch 1 was replaced by epoch 2"):
        await old.move_head(HEAD)
    with pytest.raises(FencedError):
        await old.release()

    lease = await new.read()
    assert lease.head is None
    assert not lease.released


async def test_lease_refers_to_the_newest_image_after_release_and_acquisition(
    store: MemoryStore,
) -> None:
    """The next holder of the lease gets the head that the previous holder has recorded."""
    first = await Host(store, "a").acquire()
    await first.move_head(HEAD)
    await first.release()

    second = await Host(store, "b").acquire()

    assert second.lease.head == HEAD


async def test_lease_write_with_a_lost_response_is_recognised_as_successful(
    store: MemoryStore,
) -> None:
    """If the response to a write is lost, the stored lease shows whether the write succeeded."""
    keeper = await Host(store, "a").acquire()
    ours = lease_codec.encode(replace(keeper.lease, head=HEAD))
    # Simulate a lost response: the store already has the new lease, and answers with status 412.
    store.objects[lease_codec.KEY] = ours

    await keeper.move_head(HEAD)

    assert keeper.lease.head == HEAD
    await keeper.release()


async def test_http_status_412_fences_the_host_if_another_host_holds_the_lease(
    store: MemoryStore,
) -> None:
    """If a write gets status 412 and the lease names another host, a takeover has happened."""
    keeper = await Host(store, "a").acquire()
    theirs = replace(keeper.lease, epoch=Epoch(9), host="elsewhere")
    store.objects[lease_codec.KEY] = lease_codec.encode(theirs)

    with pytest.raises(FencedError, match="epoch 9, held by elsewhere"):
        await keeper.move_head(HEAD)


async def test_error_about_a_missing_lease_reports_an_interrupted_mkfs() -> None:
    """If the bucket has a superblock but no lease, the error names a remedy."""
    with pytest.raises(UnfinishedFilesystemError, match="destroy"):
        await LeaseKeeper(MemoryStore(), SystemClock()).read()


async def test_lease_in_a_store_without_conditional_writes_is_overwritten(
    store: MemoryStore,
) -> None:
    """With --unsafe-single-writer, two hosts can overwrite each other's lease."""
    blind = await Host(store, "a", conditional=False).acquire()
    await Host(store, "b").acquire(force=True)

    await blind.move_head(HEAD)

    assert (await blind.read()).head == HEAD


async def test_late_lease_write_of_a_host_does_not_fence_the_host(store: MemoryStore) -> None:
    """A request of this host that the server executes late does not look like a takeover."""
    keeper = await Host(store, "a").acquire()
    late = replace(keeper.lease, head=HEAD)
    store.objects[lease_codec.KEY] = lease_codec.encode(late)
    newer = Head(Txg(4), ObjectKey("image/000000000004-1-00112233aabbccdd/manifest"), "cd" * 32)

    await keeper.move_head(newer)

    assert (await keeper.read()).head == newer


async def test_lease_acquired_by_a_copied_state_directory_fences_the_original(
    store: MemoryStore,
) -> None:
    """The process id distinguishes a host from a copy of its state directory."""
    second = Host(store, "a").keeper
    await second.read()
    await Host(store, "a").acquire()
    lease = replace(second.lease, epoch=Epoch(1), holder="a", released=False, pid=1)

    with pytest.raises(FencedError):
        await second._write(lease)  # noqa: SLF001 - only a race reaches this call


async def test_periodic_check_of_the_lease_detects_a_takeover(
    store: MemoryStore, autojump_clock: trio.testing.MockClock
) -> None:
    """After a takeover is detected, further checks of the lease send no request."""
    faulty = FaultyStore(store)
    old = await Host(faulty, "a").acquire()
    await Host(store, "b").acquire(force=True)
    await trio.sleep(LEASE_CHECK_S / 2)
    await old.confirm()
    await trio.sleep(LEASE_CHECK_S)
    faulty.calls.clear()

    for _ in range(3):
        with pytest.raises(FencedError, match="epoch 1 was replaced by epoch 2"):
            await old.confirm()

    assert [call.method for call in faulty.calls] == ["get"]


async def test_lease_is_checked_at_most_once_per_interval(
    store: MemoryStore, autojump_clock: trio.testing.MockClock
) -> None:
    """The lease is not requested for each of many packs per second."""
    faulty = FaultyStore(store)
    keeper = await Host(faulty, "a").acquire()
    faulty.calls.clear()

    for _ in range(5):
        await trio.sleep(LEASE_CHECK_S)
        for _ in range(5):
            await keeper.confirm()

    assert [call.method for call in faulty.calls] == ["get"] * 5


async def test_failed_check_of_the_lease_does_not_stop_uploads(store: MemoryStore) -> None:
    """If the lease cannot be read, uploads continue and the lease is checked later."""
    faulty = FaultyStore(store)
    keeper = await Host(faulty, "a", check_s=0).acquire()
    faulty.fail("get", TransientStoreError("lease", "SlowDown"))
    await keeper.confirm()
    store.objects[lease_codec.KEY] = b"rotten"
    await keeper.confirm()
    del store.objects[lease_codec.KEY]
    await keeper.confirm()

    assert keeper.fenced is None


async def test_old_lease_from_a_store_without_conditional_writes_is_not_treated_as_a_takeover(
    store: MemoryStore,
) -> None:
    """A store without conditional writes may return an older lease, which is no takeover."""
    before = store.objects[lease_codec.KEY]
    keeper = await Host(store, "a", conditional=False, check_s=0).acquire()
    store.objects[lease_codec.KEY] = before

    await keeper.confirm()

    await Host(store, "b", conditional=False).acquire(force=True)
    await Host(store, "b", conditional=False).acquire(force=True)
    with pytest.raises(FencedError):
        await keeper.confirm()


async def test_holder_does_not_adopt_an_old_lease_from_a_store_without_conditional_writes(
    store: MemoryStore,
) -> None:
    """After reading an outdated lease, the holder still writes its own epoch to the lease."""
    before = store.objects[lease_codec.KEY]
    keeper = await Host(store, "a", conditional=False).acquire()
    ours = keeper.lease
    store.objects[lease_codec.KEY] = before

    with pytest.raises(UnexpectedStoreError, match="outdated lease of epoch 0"):
        await keeper.reread()
    assert await keeper.read() == ours
    assert keeper.is_held
    await keeper.move_head(HEAD)

    written = lease_codec.decode(lease_codec.KEY, store.objects[lease_codec.KEY])
    assert written == replace(ours, head=HEAD)


async def test_host_is_fenced_if_another_host_takes_the_lease_of_an_older_bucket(
    store: MemoryStore,
) -> None:
    """A host tries to replace its older lease, but another host has acquired this lease."""
    older = store.objects[lease_codec.KEY]
    faulty = FaultyStore(store)
    keeper = await Host(faulty, "a").acquire()
    store.objects[lease_codec.KEY] = older
    async with held(faulty.hold("replace"), keeper.require_hold, FencedError):
        taken = replace(keeper.lease, epoch=Epoch(9), holder="b")
        store.objects[lease_codec.KEY] = lease_codec.encode(taken)

    assert keeper.fenced is not None
    assert lease_codec.decode(lease_codec.KEY, store.objects[lease_codec.KEY]) == taken


async def test_host_does_not_restore_the_lease_of_another_host_while_it_acquires_the_lease(
    store: MemoryStore,
) -> None:
    """During an acquisition, the bucket is reset and contains an older lease of another host."""
    other = await Host(store, "b").acquire()
    older = store.objects[lease_codec.KEY]
    await other.release()
    other = await Host(store, "b").acquire()
    await other.release()
    faulty = FaultyStore(store)
    host = Host(faulty, "a")
    async with held(faulty.hold("replace"), host.acquire, HeldError):
        store.objects[lease_codec.KEY] = older

    assert not host.keeper.is_held
    assert store.objects[lease_codec.KEY] == older


@pytest.mark.parametrize("held", ["the last lease", "an earlier lease"])
async def test_fenced_host_does_not_write_the_lease_of_an_older_bucket(
    store: MemoryStore, held: str
) -> None:
    """In an older bucket, a fenced host must not replace its own earlier lease."""
    host = Host(store, "a")
    await host.acquire()
    older = store.objects[lease_codec.KEY]
    keeper = await host.acquire()
    if held == "the last lease":
        older = store.objects[lease_codec.KEY]
    await Host(store, "b").acquire(force=True)
    with pytest.raises(FencedError):
        await keeper.require_hold()
    store.objects[lease_codec.KEY] = older

    with pytest.raises(FencedError):
        await keeper.move_head(HEAD)
    with pytest.raises(FencedError):
        await keeper.release()

    assert store.objects[lease_codec.KEY] == older


class DelayedWrite:
    """A store that delays its first replacement until the test calls arrive()."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self._delayed: tuple[ObjectKey, bytes, ETag] | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def replace(self, key: ObjectKey, data: bytes, etag: ETag) -> ETag:
        """Delay the first replacement and report a timeout; execute later ones immediately."""
        if self._delayed is None:
            self._delayed = key, data, etag
            raise TransientStoreError(key, "timed out")
        return await self._inner.replace(key, data, etag)

    async def arrive(self) -> None:
        """Execute the delayed replacement."""
        assert self._delayed is not None
        await self._inner.replace(*self._delayed)


@pytest.mark.parametrize("after", ["another head", "release", "takeover"])
async def test_delayed_lease_write_is_refused_after_a_later_write(
    store: MemoryStore, after: str
) -> None:
    """A delayed lease write is refused, because a later write has changed the lease."""
    keeper = await Host(store, "a").acquire()
    delayed = DelayedWrite(store)
    keeper._store = delayed  # type: ignore[assignment]  # noqa: SLF001 - a slow store
    with pytest.raises(TransientStoreError):
        await keeper.move_head(HEAD)
    if after == "takeover":
        await Host(store, "b").acquire(force=True)
    elif after == "release":
        await keeper.release()
    else:
        await keeper.move_head(HEAD._replace(manifest_hash="cd" * 32))
    before = dict(store.objects)

    with pytest.raises(PreconditionError):
        await delayed.arrive()

    assert store.objects == before


async def test_lease_after_a_write_with_an_unknown_outcome_must_have_the_epoch_of_the_host(
    store: MemoryStore,
) -> None:
    older = store.objects[lease_codec.KEY]
    keeper = await Host(store, "a").acquire()
    own = store.objects[lease_codec.KEY]
    store.objects[lease_codec.KEY] = older
    with pytest.raises(OlderBucketError):
        await keeper.reread()
    assert store.objects[lease_codec.KEY] == own
    assert await keeper.reread() == keeper.lease

    await Host(store, "b").acquire(force=True)
    with pytest.raises(FencedError):
        await keeper.reread()


async def test_lease_of_the_same_epoch_from_another_acquisition_fences_the_host(
    store: MemoryStore,
) -> None:
    """After a reset of the bucket, two hosts can use the same epoch, but not the same nonce."""
    keeper = await Host(store, "a").acquire()
    store.objects[lease_codec.KEY] = lease_codec.encode(replace(keeper.lease, nonce=new_nonce()))

    with pytest.raises(FencedError):
        await keeper.require_hold()


async def test_lease_of_the_same_epoch_is_not_adopted_after_a_write_with_an_unknown_outcome(
    store: MemoryStore,
) -> None:
    """The next write would otherwise replace the lease of the other host."""
    keeper = await Host(store, "a").acquire()
    theirs = lease_codec.encode(replace(keeper.lease, holder="b", nonce=new_nonce()))
    store.objects[lease_codec.KEY] = theirs

    with pytest.raises(FencedError):
        await keeper.reread()
    with pytest.raises(FencedError):
        await keeper.move_head(HEAD)
    assert store.objects[lease_codec.KEY] == theirs


@pytest.mark.parametrize("damaged", [b"", b"no lease"], ids=["missing", "damaged"])
async def test_lost_lease_is_stored_only_if_it_has_not_changed(
    store: MemoryStore, damaged: bytes
) -> None:
    keeper = await Host(store, "a").acquire()
    own = store.objects.pop(lease_codec.KEY)
    if damaged:
        store.objects[lease_codec.KEY] = damaged
    with pytest.raises(LostLeaseError) as lost:
        await keeper.require_hold()

    store.objects[lease_codec.KEY] = b"stored by another host meanwhile"
    with pytest.raises(PreconditionError):
        await keeper.put_back(lost.value)
    del store.objects[lease_codec.KEY]
    if damaged:
        store.objects[lease_codec.KEY] = damaged
    await keeper.put_back(lost.value)
    assert store.objects[lease_codec.KEY] == own
    await keeper.move_head(HEAD)


@pytest.mark.parametrize("damaged", [b"", b"no lease"], ids=["missing", "damaged"])
async def test_lost_lease_in_a_store_without_conditional_writes_is_stored_only_if_none_exists(
    store: MemoryStore, damaged: bytes
) -> None:
    keeper = await Host(store, "a", conditional=False).acquire()
    own = store.objects.pop(lease_codec.KEY)
    if damaged:
        store.objects[lease_codec.KEY] = damaged
    with pytest.raises(LostLeaseError) as lost:
        await keeper.require_hold()
    before = dict(store.objects)

    store.objects[lease_codec.KEY] = own
    await Host(store, "b", conditional=False).acquire(force=True)
    theirs = store.objects[lease_codec.KEY]
    with pytest.raises(PreconditionError):
        await keeper.put_back(lost.value)
    assert store.objects[lease_codec.KEY] == theirs

    store.objects = before
    await keeper.put_back(lost.value)
    assert store.objects[lease_codec.KEY] == own


async def test_lease_write_gives_up_if_the_store_refuses_every_write(store: MemoryStore) -> None:
    """If ETags change at every read, a lease write fails instead of looping forever."""
    faulty = FaultyStore(store)
    keeper = await Host(faulty, "a").acquire()
    for _ in range(10):
        faulty.fail("replace", PreconditionError(lease_codec.KEY))

    with pytest.raises(FencedError):
        await keeper.move_head(HEAD)

    assert [call.method for call in faulty.calls].count("replace") < 10
