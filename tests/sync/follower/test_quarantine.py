"""Quarantine before a resync: a follower keeps cached blocks of damaged packs."""

import errno
import os
from contextlib import closing

import pytest

from s3fs_meta.export import quarantine_list
from s3fs_meta.export.from_quarantine import KeptContent
from s3fs_meta.meta.tables import block_map, cached_blocks
from s3fs_meta.model import BlockIndex, BlockState, Ino
from s3fs_meta.sync.session import Session
from tests.sync.conftest import Power, block_of, read_file, write_file
from tests.sync.follower.following import following
from tests.sync.lost_packs import delete_packs, repair

CONTENT = b"only cached" * 1000


async def _written(power: Power, *contents: bytes) -> list[Ino]:
    """Write files on host a, each into a pack of its own, and unmount."""
    found = []
    async with power.session("a", tasks=False) as session:
        for content in contents:
            found.append(write_file(session, content))
            await session.flush_at_end()
        await session.close()
    return found


async def _poll(session: Session) -> None:
    assert session.follower is not None
    await session.follower.poll_once()


async def test_last_copies_of_lost_blocks_are_quarantined_and_can_be_exported(power: Power) -> None:
    """A follower has cached a block that fsck -y replaced with a hole, and quarantines it."""
    [sound] = await _written(power, b"sound" * 1000)
    packs = [data for key, data in power.store.objects.items() if key.startswith("pack/")]
    [ino] = await _written(power, CONTENT)
    async with following(power, tasks=False) as (session, _listener):
        for one in (sound, ino):
            await read_file(session, one)
        block = block_of(session.db, ino)
        delete_packs(power, *packs)
        await repair(power, "c")

        await _poll(session)

        assert await read_file(session, ino) == bytes(len(CONTENT))
        assert list(session.volume.state_dir.tmp.iterdir()) == []
        [kept] = quarantine_list.find_all(power.home / "b")
        with closing(quarantine_list.open_database(kept)) as db:
            assert cached_blocks.in_state(db, BlockState.CLEAN) == [block]
            located = block_map.locate(db, ino, BlockIndex(0))
            assert located is not None
            content = KeptContent(db, kept.blocks, power.store, session.volume.keyring)
            [found] = await content.read([located])
            assert found.data == CONTENT
            assert ino in quarantine_list.changed(db, None)
        await session.close()


async def test_resync_without_damage_quarantines_nothing(power: Power) -> None:
    """If the filesystem is intact, a resync drops cached blocks instead of quarantining them."""
    [ino] = await _written(power, CONTENT)
    async with following(power, tasks=False) as (session, listener):
        await read_file(session, ino)
        await repair(power, "c")

        await _poll(session)

        assert listener.turns[-1] is None
        assert not quarantine_list.find_all(power.home / "b")


async def test_follower_keeps_its_cache_if_the_quarantine_fails(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is too full for a quarantine, a follower shows the txg before the repair."""
    [ino] = await _written(power, CONTENT)

    def fail(source: object, target: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    async with following(power, tasks=False) as (session, _listener):
        await read_file(session, ino)
        delete_packs(power)
        await repair(power, "c")
        with monkeypatch.context() as patched:
            patched.setattr(os, "link", fail)
            await _poll(session)

        assert session.follower is not None
        assert "cannot quarantine cached blocks" in session.follower.last_error
        assert await read_file(session, ino) == CONTENT
        assert not quarantine_list.find_all(power.home / "b")
        assert list(session.volume.state_dir.tmp.iterdir()) == []
