"""Sessions: what is written here is there for every other host."""

import os

import pytest
import trio

from s3fs_meta.errors import (
    FencedError,
    HeldError,
    NotEmptyError,
    PassphraseError,
    TransientStoreError,
)
from s3fs_meta.limits import MIB
from s3fs_meta.meta import cached, packs
from s3fs_meta.model import BlockState
from s3fs_meta.mount_state import MountState
from s3fs_meta.sync.opening import OpenOptions
from s3fs_meta.sync.session import SessionOptions
from s3fs_meta.testing.faulty_store import FaultyStore

from .conftest import Power, read_file, remove_file, write_file

CONTENT = b"hello" * 1000


async def test_flushed_file_is_readable_on_another_host(power: Power) -> None:
    """After flush and clean close a host without local state sees every byte."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        assert await session.flush() is not None
        await session.close()

    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_second_host_is_refused_until_release(power: Power) -> None:
    """A crashed holder keeps the lease; the same host gets it back at once."""
    async with power.session("a"):
        pass

    with pytest.raises(HeldError):
        async with power.session("b"):
            pass
    async with power.session("a") as session:
        await session.flush()
        await session.close()
    async with power.session("b") as session:
        assert session.status.writable


async def test_unchanged_filesystem_makes_no_image(power: Power) -> None:
    """A flush without changes writes nothing to the store."""
    async with power.session("a") as session:
        write_file(session, CONTENT)
        await session.flush()
        before = dict(power.store.objects)

        assert await session.flush() is None

        assert power.store.objects == before
        await session.close()
    async with power.session("a") as session:
        assert await session.flush() is None


async def test_killed_session_loses_nothing_committed(power: Power) -> None:
    """A block that was never uploaded is dirty again after a kill, and readable."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()

    async with power.session("a") as session:
        assert session.opened.crashed
        assert await read_file(session, ino) == CONTENT
        assert await session.flush() is not None
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


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


async def test_both_moved_keeps_local_changes_aside(power: Power) -> None:
    """After a takeover the old host restores the bucket and keeps what it had, and says where."""
    async with power.session("a") as session:
        write_file(session, b"only on a")
        session.durability.commit()
    async with power.session("b", options=OpenOptions(force_takeover=True)) as session:
        ino = write_file(session, b"from b")
        await session.flush()
        await session.close()

    async with power.session("a") as session:
        assert await read_file(session, ino) == b"from b"
        [notice] = session.opened.notices
        assert "kept in" in notice
    [kept] = (power.home / "a").glob("kept-*")
    assert (kept / "meta.db").exists()
    assert list((kept / "blocks").rglob("*"))


async def test_taken_over_session_turns_read_only(power: Power) -> None:
    """The old writer's next image is refused; it says so and keeps everything."""
    async with power.session("a") as old:
        write_file(old, CONTENT)
        async with power.session("b", options=OpenOptions(force_takeover=True)):
            with pytest.raises(FencedError):
                await old.flush()

            assert old.status.state is MountState.FENCED
            assert not old.status.writable


async def test_doomed_file_stays_until_its_change_is_synced(power: Power) -> None:
    """A removed file's block goes only after the removal can survive a power cut."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        [block] = cached.in_state(session.db, BlockState.DIRTY)
        remove_file(session, ino)

        assert session.files.size(block) == len(CONTENT)
        await session.durability.sync_all()
        assert session.files.size(block) is None
        assert cached.get(session.db, block) is None


async def test_dead_pack_goes_after_two_more_images(power: Power) -> None:
    """A pack that one of the last two images names is never deleted."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        await session.flush()
        [(_pack, key)] = packs.all_keys(session.db)
        remove_file(session, ino)

        await session.flush()
        assert key in power.store.objects  # the image before still names it
        write_file(session, b"other")
        await session.flush()
        assert key not in power.store.objects
        await session.close()


async def test_only_two_images_are_kept(power: Power) -> None:
    """Older manifests go, and pieces that the kept ones do not use."""
    async with power.session("a") as session:
        for number in range(5):
            write_file(session, b"%d" % number)
            await session.flush()
        await session.close()

    manifests = [key for key in power.store.objects if key.endswith("/manifest")]
    assert len(manifests) == 2


async def test_wrong_passphrase_is_refused(power: Power) -> None:
    """An encrypted filesystem opens only with its passphrase; nothing is changed."""
    if not power.encrypted:
        pytest.skip("a plain filesystem asks for none")
    before = dict(power.store.objects)
    power.passphrase = b"wrong"

    with pytest.raises(PassphraseError):
        async with power.session("a"):
            pass

    assert power.store.objects == before


async def test_occupied_place_is_refused(power: Power) -> None:
    """Mkfs over a filesystem, or over foreign objects, changes nothing."""
    with pytest.raises(NotEmptyError, match="already holds a filesystem"):
        await power.make()
    power.store.objects.clear()
    power.store.objects["holiday.jpg"] = b""  # type: ignore[index]
    with pytest.raises(NotEmptyError, match="not empty"):
        await power.make()
    assert list(power.store.objects) == ["holiday.jpg"]


async def test_failing_background_task_does_not_end_the_mount(power: Power) -> None:
    """It is logged, the mount turns read-only and still answers reads."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)

        async def broken() -> None:
            raise RuntimeError("a bug")

        await session.supervise("broken", broken)

        assert session.status.state is MountState.DEGRADED
        assert "broken" in session.status.why
        assert await read_file(session, ino) == CONTENT


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
