"""Cached blocks that may be the last copies of their content."""

from collections.abc import Callable

import pytest

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.meta.lost_ranges import ATTRIBUTE
from s3fs_meta.meta.tables import damage_marks, xattrs
from s3fs_meta.model import BlockId, BlockIndex, Ino
from s3fs_meta.sync.session import Session
from tests.sync.conftest import Power, block_of, read_file, unmount, write_file
from tests.sync.lost_packs import delete_packs, repair

pytestmark = pytest.mark.thorough

CONTENT = b"only cached" * 100


async def _lose(power: Power, *, evicts: bool = False) -> tuple[Ino, BlockId]:
    """Write a file on host a, delete its pack, and run fsck -y on host b."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        block = block_of(session.db, ino)
        await session.flush_at_end()
        if evicts:
            session.cache.evictor.evict_bytes(1 << 60)
        await session.close()
    delete_packs(power)
    await repair(power)
    return ino, block


async def _pass_retention(power: Power) -> None:
    """Let host b delete all objects and marks that are older than the retention."""
    await power.retain(0)
    async with power.session("b", tasks=False) as session:
        for number in range(3):
            write_file(session, b"%d" % number)
            await session.make_image()
        assert not damage_marks.exist(session.db)
        await unmount(session)


@pytest.mark.parametrize("is_late", [False, True])
async def test_cached_block_of_a_range_recorded_as_lost_is_quarantined(
    power: Power, is_late: bool
) -> None:
    """A cached block can be the last copy even after the damage mark of its pack is deleted."""
    ino, block = await _lose(power)
    if is_late:
        await _pass_retention(power)

    async with power.session("a", tasks=False) as session:
        [notice] = session.volume.notices
        assert "the cache has copies of content that is lost or damaged in the bucket" in notice
        assert "recover-state --everything copies" in notice
        assert await read_file(session, ino) == bytes(len(CONTENT))
        await session.close()

    [kept] = (power.home / "a").glob("kept-*")
    assert BlockFiles(kept / "blocks", kept).read(block, 0, len(CONTENT)) == CONTENT
    async with power.session("a", tasks=False) as session:
        assert not session.volume.notices


def _remove_attribute(session: Session, ino: Ino) -> None:
    xattrs.remove(session.db, ino, ATTRIBUTE)


def _rewrite(session: Session, ino: Ino) -> None:
    session.cache.write_new(ino, BlockIndex(0), 0, b"new" * 100)


@pytest.mark.parametrize("accept", [_remove_attribute, _rewrite])
async def test_cached_block_of_a_lost_range_is_deleted_after_the_user_accepts_the_loss(
    power: Power, accept: Callable[[Session, Ino], None]
) -> None:
    """A user accepts a loss by overwriting the range or by removing the xattr."""
    ino, _block_number = await _lose(power)
    await _pass_retention(power)
    async with power.session("b", tasks=False) as session:
        session.db.begin()
        accept(session, ino)
        await unmount(session)

    async with power.session("a", tasks=False) as session:
        assert not session.volume.notices
        await session.close()

    assert not list((power.home / "a").glob("kept-*"))


async def test_outdated_state_without_the_lost_block_is_deleted(power: Power) -> None:
    """Outdated local state without the lost block contains no last copy, so it is deleted."""
    await _lose(power, evicts=True)

    async with power.session("a", tasks=False) as session:
        assert not session.volume.notices
        await session.close()
