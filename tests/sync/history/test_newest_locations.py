"""Searching the newest state of the filesystem for a lost block by its content hash.

``test_healing.py`` tests this search in mounts.
"""

import contextlib
from pathlib import Path

import pytest
import trio
import trio.testing

from s3fs_meta.background_task import continuing
from s3fs_meta.cache.fetching.fetcher import Found
from s3fs_meta.errors import ThreadShortageError
from s3fs_meta.limits import THREAD_PAUSE_S
from s3fs_meta.meta.tables import damage_marks, packs
from s3fs_meta.meta.tables.block_map import Located
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import BlockId
from s3fs_meta.sync.history.newest_locations import NewestState
from s3fs_meta.sync.session import Session
from tests.faults import no_threads
from tests.polling import WAIT_S_MAX
from tests.sync.conftest import Power, location_of, write_file
from tests.tasks import running


async def found(elsewhere: NewestState, *wanted: Located) -> list[Found | None]:
    """Search for each block in turn; return the results."""
    async with running(elsewhere.run):
        with trio.fail_after(WAIT_S_MAX):
            answers = [await elsewhere.find(one) for one in wanted]
    return answers


def newest(session: Session, path: Path) -> NewestState:
    """Return a search in the newest state; its directory does not exist yet."""
    opened = session.volume
    return NewestState(
        opened.store,
        opened.keyring,
        opened.superblock.uuid,
        opened.keeper.lease,
        path / "new" / "newest.db",
    )


async def test_lost_block_is_found_by_its_hash_in_the_newest_state(
    power: Power, tmp_path: Path
) -> None:
    """A block with the same content is found even if it has a different number."""
    async with power.session(tasks=False) as session:
        sound = write_file(session, b"sound" * 100)
        await session.flush()
        torn = write_file(session, b"torn" * 100)
        await session.flush()
        first, second = (location_of(session, ino) for ino in (sound, torn))
        assert second.pack is not None
        session.db.begin()
        damage_marks.add(session.db, Mark(second.pack, None))
        await session.make_image()
        assert first.pack is not None
        assert first.pack_offset is not None
        assert first.stored_bytes is not None
        where = Found(
            packs.object_key(session.db, first.pack), first.pack_offset, first.stored_bytes
        )

        asked = (
            first._replace(block=BlockId(99), pack=None),
            second,
            first._replace(hash=b"?" * 32),
            first._replace(hash=None),
            first._replace(plain_bytes=7),
        )
        assert await found(newest(session, tmp_path), *asked) == [where, None, None, None, None]


async def test_search_for_locations_in_an_unreadable_newest_state_finds_none(
    power: Power, tmp_path: Path
) -> None:
    """If the newest state cannot be read, the read fails with the error of the lost block."""
    async with power.session(tasks=False) as session:
        ino = write_file(session, b"content" * 100)
        await session.make_image()
        located = location_of(session, ino)
        for key in [key for key in power.store.objects if key.startswith("image/")]:
            del power.store.objects[key]

        assert await found(newest(session, tmp_path), located) == [None]


async def test_search_without_threads_fails_and_succeeds_later(
    power: Power, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """The error does not mean that the content is lost."""
    async with power.session(tasks=False) as session:
        ino = write_file(session, b"content" * 100)
        await session.make_image()
        lost = location_of(session, ino)._replace(block=BlockId(99))
        search = newest(session, tmp_path)
        async with running(continuing, "lost content", search.run):
            with no_threads(), pytest.raises(ThreadShortageError):
                await search.find(lost)
            await trio.sleep(THREAD_PAUSE_S)
            while True:
                with contextlib.suppress(ThreadShortageError):
                    found_at = await search.find(lost)
                    break
                await trio.sleep(THREAD_PAUSE_S)
        assert found_at is not None
