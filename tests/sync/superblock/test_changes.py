"""Changes of the superblock, and repairs of its objects."""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from typing_extensions import override

from s3fs_meta.bucket_errors import LostSuperblockError, OlderSuperblockError
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.key_slots import CHEAPEST_COST
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import COPY_KEY, KEY, Superblock
from s3fs_meta.errors import (
    PassphraseError,
    PreconditionError,
    StoreAccessError,
    StoreError,
    StoreUnavailableError,
)
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import ObjectKey
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.host_state.replaced_objects import ReplacedObjects
from s3fs_meta.sync.superblock.changes import accept_first, change, mend, put_back
from s3fs_meta.sync.superblock.unlocking import Passphrase
from s3fs_meta.sync.superblock_watch import tend
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.damage import flipped
from tests.faults import no_threads
from tests.sync.conftest import Power, read_file, write_file
from tests.sync.superblock.foreign import foreign_superblock


def _labelled(superblock: Superblock, keyring: Keyring) -> Superblock:
    return superblock_codec.amend(superblock, keyring, label="changed")


def _decoded(power: Power, key: ObjectKey) -> Superblock:
    return superblock_codec.decode(key, power.store.objects[key])


async def _change(power: Power, host: str = "a") -> list[str]:
    return (await change(power.store, power.remembered(host), power.secret, _labelled)).unreached


def _replaced(power: Power) -> ReplacedObjects:
    return ReplacedObjects(power.store, power.home / "a", SystemClock())


async def test_change_of_the_superblock_succeeds_if_this_host_cannot_start_a_thread(
    power: Power,
) -> None:
    """The bucket has the change already, so the command must not report a failure."""
    async with power.session("a", tasks=False) as session:
        await session.close()
    with contextlib.ExitStack() as refused:

        def refuse(step: str) -> None:
            if step == "superblock copy put":
                refused.enter_context(no_threads())

        remembered = power.remembered("a")
        changed = await change(power.store, remembered, power.secret, _labelled, hook=refuse)

    assert changed.unreached == []
    assert remembered.read() == power.store.objects[KEY]


async def test_change_of_the_superblock_is_written_to_every_copy(power: Power) -> None:
    """A change writes the superblock, its copy in the bucket and the copy on the host."""
    async with power.session("a", tasks=False) as session:
        await session.close()

    assert await _change(power) == []

    data = power.store.objects[KEY]
    assert (_decoded(power, KEY).label, _decoded(power, KEY).generation) == ("changed", 2)
    assert power.store.objects[COPY_KEY] == data
    assert power.remembered("a").read() == data
    assert (await power.keys("a")).faults == ("", "")


@pytest.mark.parametrize("key", [KEY, COPY_KEY])
@pytest.mark.parametrize("damage", ["missing", "damaged"])
async def test_changing_the_superblock_rewrites_its_missing_or_damaged_object(
    power: Power, key: ObjectKey, damage: str
) -> None:
    """After a change, the superblock and its copy have the next generation."""
    if damage == "missing":
        del power.store.objects[key]
    else:
        power.store.objects[key] = flipped(power.store.objects[key], 100)

    assert await _change(power) == []

    assert power.store.objects[KEY] == power.store.objects[COPY_KEY]
    assert _decoded(power, key).generation == 2


async def test_change_of_the_superblock_reports_a_copy_that_cannot_be_written(power: Power) -> None:
    """If the copy in the bucket cannot be written, the change is valid, but this is reported."""
    store = _Guarded(power.store)

    changed = await change(store, power.remembered("a"), power.secret, _labelled)

    assert [COPY_KEY in one for one in changed.unreached] == [True]
    keys = await power.keys()
    assert keys.superblock == changed.superblock
    assert await put_back(power.store, keys) == []
    assert power.store.objects[COPY_KEY] == power.store.objects[KEY]


async def test_one_of_two_concurrent_changes_of_the_superblock_fails(power: Power) -> None:
    """Of two concurrent changes, one fails and does not overwrite the other's superblock."""
    keys = await power.keys()

    def meanwhile(superblock: Superblock, keyring: Keyring) -> Superblock:
        power.store.objects[KEY] = superblock_codec.encode(_labelled(superblock, keyring))
        return superblock_codec.amend(superblock, keyring, label="late")

    with pytest.raises(PreconditionError):
        await change(power.store, power.remembered("a"), power.secret, meanwhile)
    assert _decoded(power, KEY).label == "changed"
    assert power.store.objects[COPY_KEY] == keys.data


async def test_change_with_a_lost_reply_is_completed(power: Power) -> None:
    """If the reply to the first write is lost, the change reads the object and continues."""
    store = FaultyStore(power.store)
    store.lose_reply("replace")

    changed = await change(store, power.remembered("a"), power.secret, _labelled)

    assert changed.unreached == []
    assert power.store.objects[KEY] == power.store.objects[COPY_KEY]
    assert _decoded(power, KEY).label == "changed"


@pytest.mark.parametrize("applied", [True, False])
async def test_change_with_an_unknown_outcome_is_reported_as_unknown(
    power: Power, applied: bool
) -> None:
    """If the first write fails, and the object cannot be read, the error says so."""
    old = power.store.objects[KEY]
    store = _FailingWrites(power.store, applied=applied)

    with pytest.raises(StoreError, match="unknown whether the superblock was changed"):
        await change(store, power.remembered("a"), power.secret, _labelled)

    assert (power.store.objects[KEY] != old) == applied
    assert power.store.objects[COPY_KEY] == old
    assert await _change(power) == []
    assert (await power.keys("a")).faults == ("", "")


async def test_refused_change_is_not_reported_as_unknown(power: Power) -> None:
    store = FaultyStore(power.store)
    before = dict(power.store.objects)
    store.fail("replace", StoreAccessError(KEY, "403", "check the policy"))

    with pytest.raises(StoreAccessError) as refused:
        await change(store, power.remembered("a"), power.secret, _labelled)

    assert "unknown" not in refused.value.message
    assert power.store.objects == before


@pytest.mark.parametrize("key", [KEY, COPY_KEY])
async def test_mount_restores_only_missing_superblock_objects(power: Power, key: ObjectKey) -> None:
    """A mount does not replace a superblock that is damaged or was just created."""
    healthy = dict(power.store.objects)
    power.store.objects[key] = b"damaged"
    assert await put_back(power.store, await power.keys()) == []
    assert power.store.objects[key] == b"damaged"

    del power.store.objects[key]
    keys = await power.keys()
    power.store.objects[key] = b"created concurrently"
    assert await put_back(power.store, keys) == []
    assert power.store.objects[key] == b"created concurrently"

    del power.store.objects[key]
    assert len(await put_back(power.store, await power.keys())) == 1
    assert power.store.objects == healthy


async def test_mount_does_not_replace_an_older_superblock(power: Power) -> None:
    """Only fsck -y replaces an older superblock with a newer copy."""
    old = power.store.objects[KEY]
    await _change(power)
    power.store.objects[KEY] = old

    assert await put_back(power.store, await power.keys()) == []

    assert power.store.objects[KEY] == old


@pytest.mark.parametrize("damage", [b"", b"torn", bytes(TEXT_OBJECT_BYTES_MAX + 1), None])
async def test_repair_makes_the_superblock_and_its_copy_equal(
    power: Power, damage: bytes | None
) -> None:
    """Before fsck -y replaces a damaged superblock, it saves the damaged object on this host."""
    await _change(power)
    state = power.home / "a"
    state.mkdir()
    newest = power.store.objects[KEY]
    for key in (KEY, COPY_KEY):
        if damage is None:
            del power.store.objects[key]
        else:
            power.store.objects[key] = damage
        keys = await power.keys("a", repairing=True)
        [done] = await mend(power.store, _replaced(power), keys)
        assert repr(key) in done
        assert power.store.objects[key] == newest
    kept = {path.read_bytes() for path in state.glob("replaced-*")}
    assert kept == ({damage} if damage else set())
    keys = await power.keys("a", repairing=True)
    assert await mend(power.store, _replaced(power), keys) == []


async def test_repair_restores_the_newest_superblock_from_this_host(power: Power) -> None:
    """If this host's copy is the newest superblock, fsck -y writes it to the bucket."""
    async with power.session("a", tasks=False) as session:
        await session.close()
    old = dict(power.store.objects)
    await _change(power)
    power.store.objects |= {key: old[key] for key in (KEY, COPY_KEY)}

    keys = await power.keys("a", repairing=True)
    assert len(await mend(power.store, _replaced(power), keys)) == 2

    assert (await power.keys("b")).superblock.label == "changed"


async def test_superblock_accepted_by_a_user_is_valid_on_other_hosts(power: Power) -> None:
    """A superblock that a user accepts gets a higher generation than all hosts remember."""
    for host in "ab":
        async with power.session(host, tasks=False) as session:
            await session.close()
    old = dict(power.store.objects)
    await _change(power, "a")
    await change(power.store, power.remembered("b"), power.secret, _labelled)
    power.store.objects |= {key: old[key] for key in (KEY, COPY_KEY)}
    with pytest.raises(OlderSuperblockError):
        await power.keys("b")

    accepted = await accept_first(power.store, power.remembered("b"), power.secret)

    assert (accepted.superblock.generation, accepted.superblock.label) == (4, "test")
    for host in "abc":
        keys = await power.keys(host)
        assert (keys.superblock, keys.faults) == (accepted.superblock, ("", ""))


@pytest.mark.parametrize("lost", [None, "image/", "changelog/", "pack/"])
async def test_superblock_of_another_filesystem_is_neither_changed_nor_copied(
    power: Power, lost: str | None
) -> None:
    """If both superblock objects belong to another filesystem, a mount changes neither of them."""
    async with power.session("a", tasks=False) as session:
        write_file(session, b"content" * 1000)
        await session.flush()
        await session.close()
    power.store.objects = {
        key: data
        for key, data in power.store.objects.items()
        if lost is None or not key.startswith(lost)
    }
    power.store.objects |= dict.fromkeys((KEY, COPY_KEY), foreign_superblock())
    foreign = await power.keys("b", repairing=True)
    del power.store.objects[COPY_KEY]
    before = dict(power.store.objects)
    remembered = power.remembered("b")

    for attempt in (
        partial(change, power.store, remembered, power.secret, _labelled),
        partial(accept_first, power.store, remembered, power.secret),
        partial(mend, power.store, _replaced(power), foreign),
    ):
        with pytest.raises(LostSuperblockError, match="keys of another filesystem"):
            await attempt()

    assert power.store.objects == before
    assert remembered.read() is None


async def test_host_that_has_mounted_the_filesystem_can_repair_its_superblock(power: Power) -> None:
    """A host that has mounted the filesystem has the keys, even if both objects are damaged."""
    async with power.session("a", tasks=False) as session:
        await session.close()
    for key in power.store.objects:
        if "/" in key:
            power.store.objects[key] = b"damaged"
    del power.store.objects[COPY_KEY]
    keys = await power.keys("a", repairing=True)

    assert len(await mend(power.store, _replaced(power), keys)) == 1

    assert power.store.objects[COPY_KEY] == power.store.objects[KEY]


async def test_damaged_superblock_is_refused_and_the_error_names_the_damage(power: Power) -> None:
    power.store.objects[KEY] = b"torn"

    with pytest.raises(
        LostSuperblockError, match="does not begin with the first line of a superblock"
    ):
        await accept_first(power.store, power.remembered("a"), power.secret)


class _Guarded(MemoryStore):
    """A store that refuses writes of the superblock's copy."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__()
        self.objects = inner.objects

    @override
    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: str) -> str:
        if key == COPY_KEY:
            raise StoreAccessError(key, "403", "")
        return await super().replace(key, data, etag)


class _FailingWrites(FaultyStore):
    """A store that fails at its first replacement of an object, and at every call after it."""

    def __init__(self, inner: MemoryStore, *, applied: bool) -> None:
        super().__init__(inner)
        self._applied = applied

    @override
    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: str) -> str:
        if self._applied:
            await super().replace(key, data, etag)
        self.down = StoreUnavailableError(key, 3, 60.0, "timeout")
        raise self.down


def _rewrapped(passphrase: bytes) -> Callable[[Superblock, Keyring], Superblock]:
    """Return a function that changes the passphrase."""

    def rewrapped(superblock: Superblock, keyring: Keyring) -> Superblock:
        return superblock_codec.rewrap(superblock, keyring, passphrase, cost=CHEAPEST_COST)

    return rewrapped


class _StoppedError(Exception):
    """Raised to simulate a kill of a command at one step."""


STEPS = ("superblock put", "superblock copy put", "superblock remembered")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("power", [True], indirect=True, ids=["encrypted"])
async def test_killed_change_of_the_passphrase_leaves_one_valid_passphrase(
    power: Power, step: str
) -> None:
    """After a kill, the next mount for writing completes the change of the passphrase."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, b"hello")
        await session.flush()
        await session.close()

    def kill(done: str) -> None:
        if done == step:
            raise _StoppedError

    with pytest.raises(_StoppedError):
        await change(power.store, power.remembered("a"), power.secret, _rewrapped(b"new"), kill)

    for host in ("a", "b"):
        with pytest.raises(PassphraseError):
            await power.keys(host)
    power.passphrase = b"new"
    for host in ("a", "b"):
        async with power.session(host, tasks=False) as session:
            assert await read_file(session, ino) == b"hello"
            await session.close()
        assert power.store.objects[COPY_KEY] == power.store.objects[KEY]


class _Meanwhile(MemoryStore):
    """A store that carries out a concurrent change before it replaces the superblock copy."""

    def __init__(self, inner: MemoryStore, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self.objects = inner.objects
        self._meanwhile = [meanwhile]

    @override
    async def replace(self, key: ObjectKey, data: bytes | memoryview, etag: str) -> str:
        if key == COPY_KEY and self._meanwhile:
            await self._meanwhile.pop()()
        return await super().replace(key, data, etag)


@pytest.mark.parametrize("power", [True], indirect=True, ids=["encrypted"])
async def test_second_change_of_the_passphrase_on_another_host_follows_the_first_change(
    power: Power,
) -> None:
    """The first change must not overwrite the superblock copy of the second change."""

    async def change_again() -> None:
        later = Passphrase(lambda: b"first")
        assert not (
            await change(power.store, power.remembered("b"), later, _rewrapped(b"second"))
        ).unreached

    store = _Meanwhile(power.store, change_again)
    changed = await change(store, power.remembered("a"), power.secret, _rewrapped(b"first"))

    assert [COPY_KEY in one for one in changed.unreached] == [True]
    power.passphrase = b"second"
    for host in ("a", "b"):
        keys = await power.keys(host)
        assert (keys.superblock.generation, keys.faults) == (3, ("", ""))
    assert power.store.objects[COPY_KEY] == power.store.objects[KEY]


@pytest.mark.parametrize("power", [True], indirect=True, ids=["encrypted"])
async def test_change_of_the_passphrase_succeeds_even_if_a_mount_finishes_the_change_first(
    power: Power,
) -> None:
    """A mount on another host may write the superblock copy before the command does."""
    async with power.session("b", tasks=False) as session:
        store = _Meanwhile(power.store, partial(tend, session.volume))

        changed = await change(store, power.remembered("a"), power.secret, _rewrapped(b"new"))

        assert power.store.objects[COPY_KEY] == power.store.objects[KEY]
        ino = write_file(session, b"hello")
        await session.flush()
        await session.close()
    assert [COPY_KEY in one for one in changed.unreached] == [True]
    power.passphrase = b"new"
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == b"hello"
