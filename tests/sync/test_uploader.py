"""Sealed blocks on their way: deduplicated, delayed, interrupted, never lost."""

import os

import trio

from s3fs_meta.errors import (
    TransientStoreError,
)
from s3fs_meta.limits import MIB
from s3fs_meta.meta import packs
from s3fs_meta.sync.session import SessionOptions
from s3fs_meta.testing.faulty_store import FaultyStore

from .conftest import Power, read_file, write_file

CONTENT = b"hello" * 1000


async def test_equal_content_is_stored_once(power: Power) -> None:
    """Duplicates in one batch, and of what is in the store, share one block."""
    async with power.session("a") as session:
        first, second = write_file(session, CONTENT), write_file(session, CONTENT)
        await session.flush()
        third = write_file(session, CONTENT)
        await session.flush()

        assert session.db.one("SELECT count(*), sum(refs) FROM blocks") == (1, 3)
        assert len(list(packs.iterate(session.db))) == 1
        await session.close()

    async with power.session("b") as session:
        for ino in (first, second, third):
            assert await read_file(session, ino) == CONTENT


async def test_zero_block_becomes_a_hole(power: Power) -> None:
    """A block of zeros is not stored; it reads as zeros everywhere."""
    async with power.session("a") as session:
        ino = write_file(session, bytes(5000))
        await session.flush()

        assert session.db.one("SELECT count(*) FROM block_map") == (0,)
        await session.close()

    async with power.session("b") as session:
        assert await read_file(session, ino) == bytes(5000)


async def test_writers_go_on_at_full_cache_without_waiting_for_the_interval(power: Power) -> None:
    """Room comes from uploading and syncing at once, not from the next background sync."""
    options = SessionOptions(
        cache_bytes=2 * MIB, commit_interval_s=3600, image_interval_s=3600, write_timeout_s=30
    )
    async with power.session("a", session_options=options) as session:
        for _ in range(12):
            await session.cache.wait_for_room(MIB // 2)
            write_file(session, os.urandom(MIB // 2))

        assert session.cache.index.total_bytes <= 2 * MIB
        assert session.status.writable


async def test_upload_survives_an_outage_of_the_store(power: Power) -> None:
    """Writes go on while the store is away; when it returns everything is shipped."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty) as session:
        ino = write_file(session, CONTENT)
        faulty.fail("create", TransientStoreError("pack", "SlowDown"), times=2)

        await session.flush()
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_daemon_killed_while_a_block_is_uploading(power: Power) -> None:
    """The only copy stays here until the store has confirmed it: the block comes back."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()
        gate = faulty.hold("create")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.flush)
            await gate.wait_started()
            nursery.cancel_scope.cancel()

    async with power.session("a") as session:
        assert await read_file(session, ino) == CONTENT
        await session.flush()
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_pack_whose_reply_was_lost_is_ours(power: Power) -> None:
    """The object is there, the reply never came: the next round finds it and goes on."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty) as session:
        ino = write_file(session, CONTENT)
        faulty.lose_reply("create")

        with trio.fail_after(20):
            await session.flush()
        assert len(list(packs.iterate(session.db))) == 1
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT
