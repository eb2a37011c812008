"""The destroy command: which objects it deletes, and in which order."""

from functools import partial
from pathlib import Path

import pytest

from s3fs_meta.bucket_errors import LostSuperblockError
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import level as level_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import text_object
from s3fs_meta.errors import NewerFormatError, UnfinishedFilesystemError, UsageError
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import ObjectStore
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.administration import removal
from s3fs_meta.sync.administration.mkfs import is_own
from s3fs_meta.sync.hooks import Hook, no_hook
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power
from tests.sync.own import own, use
from tests.tasks import held

pytestmark = pytest.mark.thorough


async def remove(
    power: Power, hook: Hook = no_hook, *, store: ObjectStore | None = None, by_name: bool = False
) -> None:
    """Remove the filesystem as destroy does."""
    before = await removal.superblock_versions(power.store)
    keys = await power.keys(repairing=True)
    found = await own(power)
    await removal.remove(
        store or power.store,
        found,
        "test",
        lambda _done, _total: None,
        hook,
        before=before,
        superblock=None if by_name else keys.data,
    )


async def test_destroy_deletes_all_objects_of_the_filesystem(power: Power) -> None:
    """The destroy command also deletes objects that only a listing of the bucket finds."""
    await use(power)
    await remove(power)

    assert power.store.objects == {}


async def test_destroy_deletes_the_superblock_copy_and_the_tombstone_last(power: Power) -> None:
    """The superblock copy is deleted late, because its keys are needed to recognise objects."""
    await use(power)
    before = set(power.store.objects)
    left: dict[str, set[str]] = {}

    def note(step: str) -> None:
        left[step] = set(power.store.objects)

    await remove(power, note)

    assert left == {
        "removal prepared": before,
        "removal noted": before,
        "objects removed": {"superblock", "superblock-copy", "lease"},
        "keys removed": {"superblock"},
        "superblock removed": set(),
    }


async def test_filesystem_of_an_interrupted_mkfs_can_be_removed(power: Power) -> None:
    """A superblock without a lease cannot be mounted, but the destroy command removes it."""
    del power.store.objects[lease_codec.KEY]
    with pytest.raises(UnfinishedFilesystemError, match="destroy"):
        async with power.session("a"):
            pass

    await remove(power)

    assert power.store.objects == {}
    await power.make()


FOREIGN_NAMES = (
    changelog_codec.key_of(Txg(3)),
    ObjectKey("changelog-part/000000000003-1-" + "a" * 16 + "/000000"),
    level_codec.key_of(1, Txg(500)),
    pack_codec.new_key(Epoch(1), b"\7" * 16),
    ObjectKey("image/000000000003-1-" + "a" * 16 + "/manifest"),
    ObjectKey("image/000000000003-1-" + "a" * 16 + "/000000"),
    ObjectKey("probe/" + "a" * 32),
)


@pytest.mark.parametrize("key", FOREIGN_NAMES)
async def test_destroy_keeps_foreign_objects_with_keys_that_this_program_uses(
    power: Power, key: ObjectKey
) -> None:
    await use(power)
    power.store.objects[key] = b"the only copy of a thesis"
    assert is_own(key), "this program must use the name"

    await remove(power)

    assert power.store.objects == {key: b"the only copy of a thesis"}


async def test_destroy_keeps_objects_of_another_filesystem(power: Power, tmp_path: Path) -> None:
    """Unencrypted objects of another filesystem are recognised by their checksums."""
    await use(power)
    other = Power(MemoryStore(), tmp_path / "other")
    other.home.mkdir()
    other.encrypted = power.encrypted
    await other.make()
    await use(other)
    copied = {k: v for k, v in other.store.objects.items() if k not in power.store.objects}
    assert {"image", "pack"} <= {key.split("/", maxsplit=1)[0] for key in copied}
    power.store.objects |= copied

    await remove(power)

    assert power.store.objects == copied


async def test_destroy_does_not_overwrite_the_superblock_of_another_filesystem(
    power: Power, tmp_path: Path
) -> None:
    other = Power(MemoryStore(), tmp_path / "other")
    other.home.mkdir()
    other.encrypted = power.encrypted
    await other.make()
    power.store.objects[ObjectKey("superblock-copy")] = other.store.objects[ObjectKey("superblock")]

    with pytest.raises(UsageError, match=r"another filesystem.*--by-name"):
        removal.require_own_superblock(await power.keys(repairing=True))


class _KilledError(Exception):
    """Raised to simulate that the removal is killed at one step."""


async def test_keys_are_available_after_an_interrupted_removal(power: Power) -> None:
    """The copy of the superblock, which contains the keys, is deleted at the end of the removal."""
    await use(power)

    def kill(step: str) -> None:
        if step == "removal noted":
            raise _KilledError

    with pytest.raises(_KilledError):
        await remove(power, kill)

    copy = ObjectKey("superblock-copy")
    for host in ("-", "a"):
        found = await removal.keys_of_removed(power.store, power.remembered(host), power.secret)
        assert found is not None
        assert found[1] == power.store.objects[copy] or host == "a"
        if host == "-":
            power.store.objects[copy] = text_object.encode("superblock", 99, {})
            with pytest.raises(NewerFormatError, match="upgrade"):
                await removal.keys_of_removed(power.store, power.remembered("-"), power.secret)
            power.store.objects[copy] = b"rotten"
            with pytest.raises(LostSuperblockError):
                await removal.keys_of_removed(power.store, power.remembered("-"), power.secret)
    del power.store.objects[copy]
    assert await removal.keys_of_removed(power.store, power.remembered("a"), power.secret) is None


@pytest.mark.parametrize("by_name", [False, True])
async def test_late_write_of_destroy_does_not_replace_a_new_superblock(
    power: Power, *, by_name: bool
) -> None:
    """If the store applies a PUT of destroy late, a new superblock must not be replaced."""
    late = FaultyStore(power.store)
    destroy_late = partial(remove, power, store=late, by_name=by_name)
    why = r"changed the object.*no object was deleted"
    async with held(late.hold("replace"), destroy_late, UsageError, why):
        await remove(power)
        await power.make()
        made = dict(power.store.objects)

    assert power.store.objects == made


@pytest.mark.parametrize("step", ["removal noted", "objects removed", "keys removed"])
async def test_slow_destroy_deletes_no_object_of_a_new_filesystem(
    power: Power, tmp_path: Path, step: str
) -> None:
    """While one destroy command is slow, a second command finishes and mkfs makes a filesystem."""
    await use(power)
    other = Power(MemoryStore(), tmp_path / "other")
    other.home.mkdir()
    other.encrypted = power.encrypted
    await other.make()
    await use(other)
    made = dict(other.store.objects)
    assert any(key.startswith(changelog_codec.PREFIX) for key in made)

    def replace_filesystem(done: str) -> None:
        if done == step:
            power.store.objects.clear()
            power.store.objects.update(made)

    with pytest.raises(UsageError, match="another process removed the filesystem"):
        await remove(power, replace_filesystem)

    assert power.store.objects == made


async def test_slower_of_two_destroy_commands_reports_that_the_removal_has_ended(
    power: Power,
) -> None:
    """If two destroy commands run, the faster command finishes the removal."""
    await use(power)
    own_keys = await own(power)
    slow = FaultyStore(power.store)
    destroy, why = partial(remove, power, store=slow), "another process removed the filesystem"
    async with held(slow.hold("delete"), destroy, UsageError, why):
        before = await removal.superblock_versions(power.store)
        await removal.remove(power.store, own_keys, "test", lambda *_: None, before=before)

    assert power.store.objects == {}
