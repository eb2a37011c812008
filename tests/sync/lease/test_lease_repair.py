"""Repair of a lost lease: the image to which it refers, and the hosts that may write."""

from dataclasses import replace

import pytest

from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import changelog as changelog_codec
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec import text_object
from s3fs_meta.codec.lease import Lease
from s3fs_meta.errors import (
    FencedError,
    FormatError,
    NewerFormatError,
    UnfinishedFilesystemError,
)
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.history.snapshot_mount import read_bucket
from s3fs_meta.sync.lease.lease_repair import mend_lease
from s3fs_meta.sync.volume import OpenOptions
from tests.sync.conftest import Power, read_file, write_file

pytestmark = pytest.mark.thorough

CONTENT = b"hello" * 1000


async def mend(power: Power) -> str | None:
    """Repair the lease as fsck -y does."""
    return await mend_lease(power.store, (await power.keys()).keyring, SystemClock())


def lease_in(store: MemoryStore) -> Lease:
    """Return the lease in a store."""
    return lease_codec.decode(lease_codec.KEY, store.objects[lease_codec.KEY])


def damage_lease(power: Power, damage: str) -> None:
    """Delete the lease, or replace it with one byte or with too many bytes of garbage."""
    if damage == "missing":
        del power.store.objects[lease_codec.KEY]
    else:
        size = 1 if damage == "rotten" else TEXT_OBJECT_BYTES_MAX + 1
        power.store.objects[lease_codec.KEY] = b"r" * size


async def open_here(power: Power) -> None:
    """Open the filesystem for writing on host c."""
    async with power.session("c", tasks=False):
        pass


async def test_lease_repair_does_not_change_an_intact_lease(power: Power) -> None:
    before = dict(power.store.objects)

    assert await mend(power) is None

    assert power.store.objects == before


@pytest.mark.parametrize("damage", ["missing", "rotten", "huge"])
async def test_repaired_lease_refers_to_the_newest_complete_image(
    power: Power, damage: str
) -> None:
    """After the repair of the lease, another host restores the last published state."""
    async with power.session("a") as session:
        write_file(session, CONTENT + b"!")
        await session.make_image()
        ino = write_file(session, CONTENT)
        await session.make_image()
        await session.close()
    before = lease_in(power.store)
    damage_lease(power, damage)

    why = await mend(power)

    after = lease_in(power.store)
    assert why is not None
    assert (after.head, after.released) == (before.head, True)
    assert after.epoch >= before.epoch
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


@pytest.mark.parametrize("damage", ["missing", "rotten", "huge"])
async def test_filesystem_with_a_damaged_lease_can_be_read(power: Power, damage: str) -> None:
    """Without a lease, readers can open the newest state and earlier points in time."""
    async with power.session("a") as session:
        first = write_file(session, CONTENT)
        await session.flush()
        await session.make_image()
        ino = write_file(session, CONTENT + b"!")
        await session.flush()
        await session.close()
    damage_lease(power, damage)
    before = dict(power.store.objects)

    bucket = await read_bucket(power.store, power.remembered("-"), power.secret, power.clock)
    assert [notice for notice in bucket.points.notices if "fsck -y" in notice]
    newest = await bucket.points.newest()
    await bucket.restore(newest, power.home / "restored.db")
    async with power.session("b", options=OpenOptions(read_only=True), tasks=False) as session:
        assert [notice for notice in session.volume.notices if "fsck -y" in notice]
        assert session.link.hash == newest.hash
        assert await read_file(session, ino) == CONTENT + b"!"
        assert await read_file(session, first) == CONTENT
    assert power.store.objects == before
    with pytest.raises(
        (FormatError, UnfinishedFilesystemError),
        match=r"fsck -y makes a new lease, and s3fs-meta mount -o ro needs none",
    ):
        await open_here(power)


@pytest.mark.parametrize("damage", ["manifest", "piece"])
async def test_repaired_lease_does_not_refer_to_an_incomplete_image(
    power: Power, damage: str
) -> None:
    async with power.session("a") as session:
        write_file(session, CONTENT)
        first = await session.make_image()
        write_file(session, CONTENT + b"!")
        second = await session.make_image()
        await session.close()
    assert first is not None
    assert second is not None
    if damage == "piece":
        del power.store.objects[ObjectKey(second.manifest_key.replace("manifest", "000000"))]
    else:
        power.store.objects[second.manifest_key] += b"!"
    del power.store.objects[lease_codec.KEY]

    await mend(power)

    assert lease_in(power.store).head == first


async def test_lease_repair_fences_the_former_holder(power: Power) -> None:
    async with power.session("a") as session:
        write_file(session, CONTENT)
        await session.make_image()
        del power.store.objects[lease_codec.KEY]
        await mend(power)
        write_file(session, CONTENT + b"!")

        with pytest.raises(FencedError):
            await session.make_image()


async def test_lease_repair_creates_no_lease_if_no_image_exists(power: Power) -> None:
    """Without an image, as after an interrupted mkfs, no lease is created."""
    for key in list(power.store.objects):
        if key == lease_codec.KEY or image_codec.parse_manifest_key(key) is not None:
            del power.store.objects[key]
    before = dict(power.store.objects)

    with pytest.raises(UnfinishedFilesystemError):
        await mend(power)

    assert power.store.objects == before


async def test_repaired_lease_does_not_refer_to_a_forged_image_of_a_newer_version(
    power: Power,
) -> None:
    """Images of a newer version are ignored unless they are authentic."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        head = await session.make_image()
        await session.close()
    claims = b"S3FSMETA\x00\x63" + bytes(100)
    foreign = image_codec.manifest_key(Txg(head.txg + 1), Epoch(1), b"foreign!")
    power.store.objects[foreign] = claims
    power.store.objects[changelog_codec.key_of(Txg(1 << 62))] = claims
    damage_lease(power, "rotten")

    done = await mend(power)

    assert done is not None
    assert done.endswith(f"with {head.manifest_key} as its head")
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == CONTENT
        await session.close()

    damage_lease(power, "rotten")
    for key in [key for key in power.store.objects if key.endswith("/manifest")]:
        power.store.objects[key] = claims
    with pytest.raises(NewerFormatError):
        await mend(power)


async def test_lease_repair_does_not_replace_a_lease_of_a_newer_version(power: Power) -> None:
    """A lease of a newer version is kept, because a newer program can read it."""
    power.store.objects[lease_codec.KEY] = text_object.encode("lease", 9, {})

    with pytest.raises(NewerFormatError):
        await mend(power)


async def test_lease_repair_does_not_reuse_an_epoch_found_only_in_changelogs(power: Power) -> None:
    """If a mount ships no change, only its fence record contains its epoch."""
    for host in "ab":
        async with power.session(host) as session:
            await session.close()
    before = lease_in(power.store)
    assert before.epoch == 2
    del power.store.objects[lease_codec.KEY]

    await mend(power)

    assert lease_in(power.store).epoch == 2


async def test_repaired_lease_has_a_later_epoch_than_an_unreadable_changelog(power: Power) -> None:
    """An unreadable changelog may contain the highest epoch, so the known epoch is raised by 1."""
    for host in "ab":
        async with power.session(host) as session:
            await session.close()
    power.store.objects[changelog_codec.key_of(Txg(2))] = b"rotten"
    del power.store.objects[lease_codec.KEY]

    await mend(power)

    assert lease_in(power.store).epoch == 2


async def test_epoch_of_a_missing_changelog_is_read_from_the_keys_of_its_parts(
    power: Power,
) -> None:
    """If a changelog is missing, its epoch is found in the keys of its parts."""
    prefix = changelog_codec.part_prefix(Txg(9), Epoch(7), bytes(changelog_codec.RANDOM_BYTES))
    power.store.objects[changelog_codec.part_key(prefix, 0)] = b"whatever"
    del power.store.objects[lease_codec.KEY]

    await mend(power)

    assert lease_in(power.store).epoch == 7


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("epoch", [(1 << 63) - 1, 1 << 62, (1 << 32) + 100])
async def test_lease_with_an_impossible_epoch_is_recreated(
    power: Power, epoch: int, *, beside: bool
) -> None:
    """An impossibly high epoch counts as damage, even if keys of foreign objects contain it."""
    async with power.session("a") as session:
        await session.make_image()
        ino = write_file(session, CONTENT)
        await session.flush()
        await session.close()
    before = lease_in(power.store)
    power.store.objects[lease_codec.KEY] = lease_codec.encode(replace(before, epoch=Epoch(epoch)))
    if beside:
        for key in (
            pack_codec.new_key(Epoch(epoch), bytes(16)),
            image_codec.manifest_key(Txg(9), Epoch(epoch), bytes(8)),
        ):
            power.store.objects[key] = b"junk"
    objects = dict(power.store.objects)
    checking = OpenOptions(read_only=True, repairing=True)
    for host, options in (("a", None), ("b", None), ("c", checking)):
        with pytest.raises(FormatError, match="fsck -y"):
            async with power.session(host, options=options):
                pass
        assert power.store.objects == objects

    why = await mend(power)

    assert why is not None
    assert "far above" in why
    assert lease_in(power.store).epoch == before.epoch
    assert await mend(power) is None
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT
        assert session.volume.keeper.epoch == before.epoch + 1


async def test_mount_accepts_a_lease_with_a_large_epoch(power: Power) -> None:
    lease = lease_in(power.store)
    power.store.objects[lease_codec.KEY] = lease_codec.encode(replace(lease, epoch=Epoch(1 << 32)))
    for host in ("a", "b", "a"):
        async with power.session(host) as session:
            write_file(session, CONTENT)
            await session.flush()
            await session.close()

    assert await mend(power) is None
    assert lease_in(power.store).epoch == (1 << 32) + 3
