"""Mostly dead packs move into new ones."""

import os

from s3fs_meta.meta import packs

from .conftest import Power, read_file, remove_file, write_file


async def test_mostly_dead_pack_is_emptied_and_goes(power: Power) -> None:
    """Compaction moves what lives; after two more images the old pack is gone."""
    async with power.session("a") as session:
        kept = write_file(session, os.urandom(2000))
        content = await read_file(session, kept)
        doomed = write_file(session, os.urandom(50_000))
        await session.flush()
        [(_pack, old_key)] = packs.all_keys(session.db)
        remove_file(session, doomed)
        await session.flush()

        assert await session.compactor.run_once() == 1
        for _ in range(3):
            write_file(session, os.urandom(100_000))
            await session.flush()

        assert old_key not in power.store.objects
        assert await read_file(session, kept) == content
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, kept) == content


async def test_kill_during_compaction_leaves_the_block_readable(power: Power) -> None:
    """Until the new place is confirmed the old one stands."""
    async with power.session("a") as session:
        kept = write_file(session, b"kept" * 500)
        doomed = write_file(session, os.urandom(50_000))
        await session.flush()
        remove_file(session, doomed)
        await session.flush()
        assert await session.compactor.run_once() == 1
        session.durability.commit()

    async with power.session("a") as session:
        assert await read_file(session, kept) == b"kept" * 500
        assert session.uploader.pending == 0


async def test_pack_of_tiny_files_is_not_compacted_for_ever(power: Power) -> None:
    """A pack that is mostly index is no smaller after a move, so it stays."""
    async with power.session("a") as session:
        for number in range(20):
            write_file(session, b"tiny %d" % number)
        await session.flush()

        assert await session.compactor.run_once() == 0
