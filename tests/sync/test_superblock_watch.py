"""The superblock watch: a running mount restores and updates its superblock."""

from dataclasses import replace

import pytest

from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.superblock import COPY_KEY, KEY
from s3fs_meta.errors import BeingRemovedError, FencedError
from s3fs_meta.model import ObjectKey
from s3fs_meta.sync.superblock_watch import retained_s, tend
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import FaultyStore
from tests.sync.conftest import Power, unmount
from tests.sync.kept import files_at, forget, kept_files


@pytest.mark.parametrize("forgetful", [False, True])
async def test_running_mount_restores_a_lost_superblock(power: Power, forgetful: bool) -> None:
    """A running mount writes a lost superblock again from memory."""
    before = {key: power.store.objects[key] for key in (KEY, COPY_KEY)}
    async with power.session("a", tasks=False) as session:
        del power.store.objects[KEY], power.store.objects[COPY_KEY]
        if forgetful:
            power.remembered("a").path.unlink()

        await session.reclaimer.run()

        assert session.reclaimer.last_error == ""
    assert {key: power.store.objects[key] for key in (KEY, COPY_KEY)} == before
    assert power.remembered("a").read() == before[KEY]


async def test_flush_at_unmount_restores_a_lost_superblock(power: Power) -> None:
    async with power.session("a", tasks=False) as session:
        before = power.store.objects.pop(KEY)
        await unmount(session)

    assert power.store.objects[KEY] == before


@pytest.mark.parametrize("key", [KEY, COPY_KEY])
async def test_explicit_flush_restores_a_lost_superblock(power: Power, key: ObjectKey) -> None:
    """A flush restores the superblock even if there are no changes to ship."""
    async with power.session("a", tasks=False) as session:
        before = power.store.objects.pop(key)
        await session.flush_now()
        assert power.store.objects[key] == before


async def test_explicit_flush_checks_the_superblock_with_one_extra_listing(power: Power) -> None:
    store = FaultyStore(power.store)
    async with power.session("a", store=store, tasks=False) as session:
        await session.flush()
        store.calls.clear()
        await session.flush()
        plain = [call.method for call in store.calls]
        store.calls.clear()
        await session.flush_now()
        assert [call.method for call in store.calls] == [*plain, "list"]


async def test_fenced_mount_does_not_restore_a_lost_superblock(power: Power) -> None:
    """A fenced mount must not restore the superblock, because destroy may have removed it."""
    async with power.session("a", tasks=False) as session:
        async with power.session("b", options=OpenOptions(force_takeover=True), tasks=False) as b:
            await b.close()
        del power.store.objects[KEY]
        with pytest.raises(FencedError):
            await tend(session.volume)
        power.store.objects[KEY] = superblock_codec.encode_tombstone("test")
        with pytest.raises(BeingRemovedError):
            await tend(session.volume)
        del power.store.objects[KEY]
    assert KEY not in power.store.objects


async def test_running_mount_accepts_a_superblock_changed_by_another_host(power: Power) -> None:
    """The superblock watch adopts the change and updates all copies of the superblock."""
    async with power.session("a", tasks=False) as session:
        old = dict(power.store.objects)
        await power.retain(0)
        power.store.objects[COPY_KEY] = old[COPY_KEY]
        assert await retained_s(session.volume) == 7 * 86_400

        await tend(session.volume)

        assert power.store.objects[COPY_KEY] == power.store.objects[KEY]
        assert session.volume.superblock.generation == 2
        assert power.remembered("a").read() == power.store.objects[KEY]
        assert await retained_s(session.volume) == 0


async def test_forged_superblock_of_the_same_generation_cannot_shorten_the_retention(
    plain: Power,
) -> None:
    """A mount accepts a changed superblock only if the change has raised the generation."""
    await plain.retain(30 * 86_400)
    async with plain.session("a", tasks=False) as session:
        seen = session.volume.superblock
        forged = superblock_codec.encode(replace(seen, retention_s=0))
        for key in (superblock_codec.KEY, superblock_codec.COPY_KEY):
            plain.store.objects[key] = forged
        plain.remembered("a").path.unlink()  # The running mount keeps the superblock in memory.
        for _ in range(2):
            assert await retained_s(session.volume) == 30 * 86_400
            await tend(session.volume)
            assert session.volume.superblock == seen
        await session.close()

    # The next mount also ignores the forged superblock.
    async with plain.session("a", tasks=False) as session:
        assert await retained_s(session.volume) == 30 * 86_400
        await tend(session.volume)
        await session.close()

    await plain.retain(3600)  # An authentic superblock may shorten the retention.
    async with plain.session("a", tasks=False) as session:
        assert await retained_s(session.volume) == 3600


async def test_reclaim_adds_the_missing_kept_point_feature_flag_to_a_superblock(
    power: Power,
) -> None:
    """If an older superblock without the feature flag was restored, reclaim adds the flag."""
    await power.retain(0)
    async with power.session("b", tasks=False) as session:
        await unmount(session)
    async with power.session("a", tasks=False) as session:
        files = await kept_files(session)
        await unmount(session)
    for key in (KEY, COPY_KEY):
        del power.store.objects[key]
    async with power.session("b", tasks=False) as session:
        assert superblock_codec.KEPT_POINTS not in session.volume.superblock.features
        await forget(session)
        assert superblock_codec.KEPT_POINTS in session.volume.superblock.features
        await unmount(session)
    assert (await power.keys()).superblock.features == (superblock_codec.KEPT_POINTS,)
    assert await files_at(power, "a") == files
    async with power.session("a", tasks=False):
        pass
