"""The uploader: deduplication, outages, kills, lost blocks and fencing."""

import errno
import mmap
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence

import pytest
import trio
from typing_extensions import override

from s3fs_meta.codec import lease as lease_codec
from s3fs_meta.codec.pack import PackEntry
from s3fs_meta.errors import (
    FencedError,
    LostBlockError,
    ReadOnlyStateError,
    TransientStoreError,
)
from s3fs_meta.limits import KIB, LOOP_SLICE_ROWS, MIB, UPLOADS_MAX
from s3fs_meta.meta.tables import cached_blocks, packs
from s3fs_meta.model import BlockId, BlockState, ObjectKey, PackState
from s3fs_meta.mount_state import MountState, MountStatus
from s3fs_meta.objects.contact import note_sent
from s3fs_meta.objects.contract import ETag
from s3fs_meta.objects.retry import RetryingStore
from s3fs_meta.options.settings import SessionOptions
from s3fs_meta.sync.upload import uploader
from s3fs_meta.sync.upload.bounds import UploadBounds
from s3fs_meta.sync.volume import OpenOptions
from s3fs_meta.testing.faulty_store import Call, FaultyStore
from tests.descriptors import no_more_files
from tests.polling import WAIT_S_MAX
from tests.sync.conftest import (
    TAKEOVER,
    Power,
    keys_of,
    location_of,
    read_file,
    remove_file,
    write_file,
)
from tests.tasks import running

pytestmark = pytest.mark.thorough

CONTENT = b"hello" * 1000
IMPATIENT = UploadBounds(seal_age_s=0.05, seal_linger_s=0.05)
WATCHFUL = OpenOptions(lease_check_s=0)


async def test_equal_content_is_stored_once(power: Power) -> None:
    """Equal blocks are stored once, whether in one batch or in earlier packs."""
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


async def test_block_of_zeros_becomes_a_hole(power: Power) -> None:
    """A block of zeros is not stored, and another host reads it as zeros."""
    async with power.session("a") as session:
        ino = write_file(session, bytes(5000))
        await session.flush()

        assert session.db.one("SELECT count(*) FROM block_map") == (0,)
        await session.close()

    async with power.session("b") as session:
        assert await read_file(session, ino) == bytes(5000)


async def test_writers_waiting_for_cache_space_do_not_wait_for_the_commit_interval(
    power: Power,
) -> None:
    """An upload followed by a sync frees cache space without waiting for the commit interval."""
    options = SessionOptions(
        cache_bytes=2 * MIB, commit_interval_s=3600, image_interval_s=3600, write_timeout_s=30
    )
    async with power.session("a", session_options=options) as session:
        for _ in range(12):
            await session.cache.wait_for_room(MIB // 2)
            write_file(session, os.urandom(MIB // 2))

        assert session.cache.index.total_bytes <= 2 * MIB
        assert session.status.writable


async def test_slow_upload_makes_writers_wait_longer_than_the_write_timeout(power: Power) -> None:
    """A writer does not fail with ENOSPC while a pack is being sent."""
    faulty = FaultyStore(power.store)
    options = SessionOptions(cache_bytes=MIB, sync_interval_s=3600, write_timeout_s=0.1)
    async with power.session(
        "a", store=faulty, session_options=options, bounds=IMPATIENT
    ) as session:
        gate = faulty.hold("create")
        write_file(session, os.urandom(MIB - 4096))
        await gate.wait_started()
        # The slow upload extends the wait: the writer is still waiting when the test cancels it.
        with trio.move_on_after(0.5) as scope:
            await session.cache.wait_for_room(MIB // 2)
        assert scope.cancelled_caught
        gate.open()


class _SlowStore(FaultyStore):
    """A store whose first upload of a pack fails and whose second upload takes four seconds."""

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Send a pack in pieces."""
        if key.startswith("pack/") and Call("create", key) in self.calls:
            for _ in range(40):
                note_sent(64 * KIB)
                await trio.sleep(0.1)
        return await super().create(key, data)


@pytest.mark.slow
async def test_writer_waits_while_a_pack_is_sent_again_after_a_failure(power: Power) -> None:
    """A writer keeps waiting while pieces of a pack are sent after a failed request."""
    slow = _SlowStore(power.store)
    options = SessionOptions(cache_bytes=MIB, sync_interval_s=3600, write_timeout_s=2)
    async with power.session(
        "a", store=RetryingStore(slow), session_options=options, bounds=IMPATIENT
    ) as session:
        slow.fail("create")
        write_file(session, os.urandom(MIB - 4096))
        await session.cache.wait_for_room(MIB // 2)


class _StoreWithWriter(FaultyStore):
    """A store that calls *write* during the first upload of a pack, and never ends the third."""

    write: Callable[[], object] = staticmethod(lambda: None)
    packs = 0

    @override
    async def create(self, key: ObjectKey, data: bytes | memoryview) -> ETag:
        """Store an object."""
        self.packs += key.startswith("pack/")
        if key.startswith("pack/") and self.packs == 1:
            self.write()
        elif key.startswith("pack/"):
            await trio.sleep(0.2 if self.packs == 2 else WAIT_S_MAX)
        return await super().create(key, data)


async def test_flush_does_not_wait_for_blocks_that_are_written_during_its_upload(
    power: Power,
) -> None:
    """A program that writes without a pause would otherwise delay every flush on a slow link."""
    store = _StoreWithWriter(power.store)
    one_block = UploadBounds(batch_blocks=1)
    async with power.session("a", store=store, tasks=False, bounds=one_block) as session:
        for content in (b"first", b"second"):
            write_file(session, content * 1000)
        store.write = lambda: write_file(session, b"third" * 1000)
        with trio.fail_after(WAIT_S_MAX / 2):
            await session.flush()

        assert store.packs == 2
        assert session.cache.index.count_in[BlockState.DIRTY] == 1


async def test_files_written_during_an_outage_are_uploaded_afterwards(power: Power) -> None:
    """A flush repeats its uploads until the store responds."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty) as session:
        ino = write_file(session, CONTENT)
        faulty.fail("create", TransientStoreError("pack", "SlowDown"), times=2)

        await session.flush()
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_block_whose_upload_was_interrupted_by_a_kill_is_dirty_again(power: Power) -> None:
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()
        gate = faulty.hold("create")
        async with running(session.flush):
            await gate.wait_started()

    async with power.session("a") as session:
        assert await read_file(session, ino) == CONTENT
        await session.flush()
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_pack_of_a_cancelled_upload_is_condemned(power: Power) -> None:
    """The blocks of a cancelled upload are put into another pack; the first pack is condemned."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty, tasks=False) as session:
        ino = write_file(session, CONTENT)
        session.durability.commit()
        gate = faulty.hold("create")
        async with running(session.flush):
            await gate.wait_started()
        gate.open()
        [pack] = packs.iterate(session.db)
        assert pack.state is PackState.CONDEMNED

        await session.flush()
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT
        assert packs.get(session.db, pack.pack).state is PackState.CONDEMNED


async def test_unreadable_row_of_a_block_with_the_same_content_does_not_stop_uploads(
    power: Power,
) -> None:
    async with power.session("a", tasks=False) as session:
        damaged = location_of(session, write_file(session, CONTENT)).block
        await session.flush()
        session.db.begin()
        session.db.run("UPDATE blocks SET plain_bytes = 'text' WHERE block = ?", (damaged,))
        ino = write_file(session, CONTENT)

        await session.flush()

        assert location_of(session, ino).pack is not None


async def test_pack_of_an_upload_that_was_cancelled_before_it_was_sent_is_condemned(
    power: Power,
) -> None:
    """A pack without an outcome would make the next mount reject its complete local state."""
    async with power.session("a", tasks=False) as session:
        write_file(session, CONTENT)
        sync, token = session.files.sync, trio.lowlevel.current_trio_token()
        scope = trio.CancelScope()

        def cancel_before_the_upload() -> None:
            if packs.uploading(session.db):
                scope.cancel()

        def sync_and_cancel(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
            sync(blocks, named)
            trio.from_thread.run_sync(cancel_before_the_upload, trio_token=token)

        session.files.sync = sync_and_cancel  # type: ignore[method-assign]
        with scope:
            await session.flush()
        assert scope.cancelled_caught

        [pack] = packs.iterate(session.db)
        assert pack.state is PackState.CONDEMNED
        assert keys_of(power, "pack/") == []


async def test_pack_is_not_uploaded_again_after_its_response_was_lost(power: Power) -> None:
    """If the response to an upload is lost, the retry finds the pack in the store."""
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty) as session:
        ino = write_file(session, CONTENT)
        faulty.lose_reply("create")

        with trio.fail_after(WAIT_S_MAX):
            await session.flush()
        assert len(list(packs.iterate(session.db))) == 1
        await session.close()
    async with power.session("b") as session:
        assert await read_file(session, ino) == CONTENT


async def test_lost_block_of_a_removed_file_does_not_prevent_the_next_image(power: Power) -> None:
    """A lost block that no file uses must not prevent an image."""
    async with power.session("a") as session:
        ino = write_file(session, CONTENT)
        [block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        session.files.remove(block)
        with pytest.raises(LostBlockError):
            await session.flush()
        remove_file(session, ino)

        assert await session.flush() is not None

        assert session.uploader.pending == 0
        assert session.db.one("SELECT count(*) FROM blocks") == (0,)


async def test_lost_block_does_not_stop_uploads_of_other_blocks(power: Power) -> None:
    """Each flush reports the lost block with a remedy; reads of the block fail on all hosts."""
    async with power.session("a") as session:
        first = write_file(session, CONTENT)
        [block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        session.files.remove(block)
        sound = write_file(session, CONTENT * 2)
        with pytest.raises(LostBlockError, match=rf"block {block} .* inode {first} .*fsck -y"):
            await session.flush()
        sound = write_file(session, CONTENT * 3)
        with pytest.raises(LostBlockError):
            await session.flush()
        before = dict(power.store.objects)
        with pytest.raises(LostBlockError):
            await session.flush()
        assert power.store.objects == before
        await session.close()

    async with power.session("b", tasks=False) as session:
        assert await read_file(session, sound) == CONTENT * 3
        with pytest.raises(LostBlockError):
            await read_file(session, first)


async def test_block_is_uploaded_later_if_its_file_cannot_be_opened_now(power: Power) -> None:
    """If a block file cannot be opened for lack of descriptors, its block is not lost."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        [block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        batch = await session.uploader.sealer.next_batch(0.0)
        await session.uploader.acquire(batch)
        session.files.let_go([block])
        with no_more_files():
            await session.uploader.ship_and_release(batch)
        assert "Too many open files" in session.uploader.last_error
        assert session.uploader.lost == {}

        await session.flush()
        await session.close()
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == CONTENT


async def test_block_file_restored_by_a_user_is_uploaded(power: Power) -> None:
    """If a user restores a lost block file from a backup, the block is uploaded."""
    async with power.session("a", tasks=False) as session:
        ino = write_file(session, CONTENT)
        [block] = cached_blocks.in_state(session.db, BlockState.DIRTY)
        session.files.remove(block)
        with pytest.raises(LostBlockError):
            await session.flush()
        session.files.create(block, 0, CONTENT)

    async with power.session("a", tasks=False) as session:
        assert await session.flush() is not None
        await session.close()
    async with power.session("b", tasks=False) as session:
        assert await read_file(session, ino) == CONTENT


async def test_failed_upload_pauses_before_the_next_attempt(power: Power) -> None:
    """Without a pause, a failing disk would cause endless retries and a huge log."""
    rounds = 0
    began, stormed = trio.Event(), trio.Event()

    def hook(step: str) -> None:
        nonlocal rounds
        if step == "pack intended":
            rounds += 1
            began.set()
            if rounds > UPLOADS_MAX:
                stormed.set()
            raise OSError(errno.EIO, "Input/output error")

    async with power.session("a", hook=hook, bounds=IMPATIENT) as session:
        write_file(session, CONTENT)
        with trio.fail_after(WAIT_S_MAX):
            await began.wait()
        with trio.move_on_after(0.2):
            await stormed.wait()

    assert rounds <= UPLOADS_MAX


async def test_upload_cancelled_after_storing_a_pack_still_records_its_block_locations(
    power: Power,
) -> None:
    """Block locations are recorded even if the upload is cancelled after its pack is stored."""
    scope = trio.CancelScope()

    def hook(step: str) -> None:
        if step == "pack put":
            scope.cancel()

    async with power.session("a", tasks=False, hook=hook) as session:
        for _ in range(2 * LOOP_SLICE_ROWS):
            write_file(session, os.urandom(16))
        with scope:
            await session.flush()
        assert scope.cancelled_caught
        assert session.uploader.pending == 0


async def test_released_blocks_can_be_uploaded_again_before_their_batch_is_synced(
    power: Power,
) -> None:
    """An uploaded batch keeps its upload slot until its rows are synced; its blocks are free."""
    async with power.session("a", tasks=False) as session:
        uploader = session.uploader
        ino = write_file(session, b"content")
        first = await uploader.sealer.next_batch(0.0)
        await uploader.acquire(first)
        uploader.sealer.release(first)

        second = await uploader.sealer.next_batch(0.0)
        assert second == first
        await uploader.acquire(second)
        await uploader.ship_and_release(second)
        await session.flush()
    async with power.session("b", options=TAKEOVER) as session:
        assert await read_file(session, ino) == b"content"


async def test_flush_ends_with_an_error_if_many_batches_fail(power: Power) -> None:
    """A flush reports the first error, even if many batches fail."""
    async with power.session("a", tasks=False, bounds=UploadBounds(batch_blocks=1)) as session:
        for _ in range(UPLOADS_MAX * 3):
            write_file(session, os.urandom(1000))
        session.durability.commit()

        def refuse(blocks: Sequence[BlockId], named: Collection[BlockId] = ()) -> None:
            raise OSError(errno.EIO, "Input/output error", str(blocks))

        session.files.sync = refuse  # type: ignore[method-assign]
        failed = pytest.raises(ReadOnlyStateError, match="Input/output error")
        with trio.fail_after(WAIT_S_MAX), failed:
            await session.flush()


async def test_each_upload_keeps_only_one_pack_in_memory(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush of several packs frees each pack's memory before it builds the next pack."""
    alive = weakref.WeakSet[mmap.mmap]()
    counts: list[int] = []

    class CountedMemory(mmap.mmap):
        def __init__(self, *_args: object, **_options: object) -> None:
            alive.add(self)
            counts.append(len(alive))

    monkeypatch.setattr(mmap, "mmap", CountedMemory)
    bounds = UploadBounds(batch_bytes=8 * MIB, pack_bytes=MIB)
    async with power.session("a", tasks=False, bounds=bounds) as session:
        for _ in range(UPLOADS_MAX * 8):
            write_file(session, os.urandom(MIB))
        await session.flush()
        await session.close()

    assert len(counts) >= UPLOADS_MAX * 8, "each block must have its own pack"
    assert max(counts) <= UPLOADS_MAX
    assert not alive


async def test_rollback_of_the_locations_of_uploaded_blocks_loses_no_block(
    power: Power, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If locations of uploaded blocks are rolled back, each block is in the cache or the bucket."""
    lose: list[Callable[[], None]] = []

    def slices_with_a_loss(items: Sequence[PackEntry]) -> Iterator[Sequence[PackEntry]]:
        for item in items:
            yield [item]
            if lose:
                lose.pop()()

    async with power.session("a", tasks=False) as session:
        contents = {}
        for _ in range(3):
            content = os.urandom(1000)
            contents[write_file(session, content)] = content
        session.durability.commit()
        monkeypatch.setattr(uploader, "slices", slices_with_a_loss)
        lose.append(session.db.rollback)
        with pytest.raises(ReadOnlyStateError, match="lost"):
            await session.flush()
        assert lose == []
        monkeypatch.undo()
        session.db.commit()

    async with power.session("a") as session:
        await session.flush()
        for ino, content in contents.items():
            assert await read_file(session, ino) == content
        await session.close()
    async with power.session("b") as session:
        for ino, content in contents.items():
            assert await read_file(session, ino) == content


async def test_fenced_mount_stops_uploading_packs(power: Power) -> None:
    """Background uploads detect a takeover before the next image."""
    by_force = power.session("b", options=OpenOptions(force_takeover=True))
    first = power.session("a", options=WATCHFUL, bounds=IMPATIENT, tasks=False)
    async with first as old, by_force, trio.open_nursery() as nursery:
        fenced = trio.Event()
        fence = old.status.fence
        old.status.fence = lambda why: (fence(why), fenced.set())[1]  # type: ignore[method-assign]
        write_file(old, CONTENT)
        old.cache.upload_signal.set()
        nursery.start_soon(old.uploader.run)
        with trio.fail_after(WAIT_S_MAX):
            await fenced.wait()
        nursery.cancel_scope.cancel()

        assert old.uploader.pending == 1
        assert not [key for key in power.store.objects if key.startswith("pack/")]
        with trio.CancelScope(shield=True):
            with pytest.raises(FencedError):
                await old.flush()
            await old.close()
        found = lease_codec.decode(lease_codec.KEY, power.store.objects[lease_codec.KEY])
        assert (old.status.state, found.epoch) == (MountState.STOPPING, 2)
        assert not found.released


async def test_session_that_loses_its_lease_during_the_mount_is_fenced(power: Power) -> None:
    """A session detects that another host took the lease while the session was starting."""
    async with power.session("a", options=WATCHFUL, tasks=False) as old:
        old.status.__dict__.update(MountStatus().__dict__)
        async with power.session("b", options=OpenOptions(force_takeover=True), tasks=False):
            write_file(old, CONTENT)
            with pytest.raises(FencedError):
                await old.flush()

            assert old.status.state is MountState.FENCED


async def test_takeover_during_the_close_of_a_session_does_not_count_as_a_crash(
    power: Power,
) -> None:
    """A closing session whose upload detects the takeover finds no crash at its next mount."""
    async with power.session("a", options=WATCHFUL, tasks=False) as old:
        write_file(old, CONTENT)
        await old.flush()
        async with power.session("b", options=OpenOptions(force_takeover=True), tasks=False):
            write_file(old, CONTENT[::-1])
            old.status.enter(MountState.STOPPING)
            with pytest.raises(FencedError):
                await old.flush()
            assert not old.status.ships
            await old.close()
    again = power.session("a", options=OpenOptions(force_takeover=True), tasks=False)
    async with again as session:
        assert not session.volume.crashed


@pytest.mark.parametrize("batch_blocks", [100, 7], ids=["one batch", "many batches"])
@pytest.mark.parametrize("kept", [0, 1, 15], ids=["all", "all but one", "half"])
async def test_equal_blocks_removed_during_shipping_share_one_pack(
    power: Power, batch_blocks: int, kept: int
) -> None:
    """Equal blocks that are removed during shipping may have the same location."""
    faulty = FaultyStore(power.store)
    bounds = UploadBounds(batch_blocks=batch_blocks)
    async with power.session("a", store=faulty, bounds=bounds, tasks=False) as session:
        inos = [write_file(session, CONTENT) for _ in range(30)]
        gate = faulty.hold("create")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.flush)
            await gate.wait_started()
            for ino in inos[: len(inos) - kept]:
                remove_file(session, ino)
            gate.open()

        assert len(keys_of(power, "pack/")) <= 2
        await session.flush_at_end()
        assert len(keys_of(power, "pack/")) <= 2
        assert session.uploader.pending == 0
        assert session.db.one("SELECT coalesce(sum(refs), 0) FROM blocks") == (kept,)
        await session.close()
    async with power.session("b", tasks=False) as session:
        for ino in inos[len(inos) - kept :]:
            assert await read_file(session, ino) == CONTENT


async def test_many_blocks_removed_during_shipping_are_put_into_one_pack(power: Power) -> None:
    faulty = FaultyStore(power.store)
    async with power.session("a", store=faulty, tasks=False) as session:
        inos = [write_file(session, b"%d" % number * 900) for number in range(50)]
        gate = faulty.hold("create")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.flush)
            await gate.wait_started()
            for ino in inos:
                remove_file(session, ino)
            gate.open()

        assert len(keys_of(power, "pack/")) == 1
