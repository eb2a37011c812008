"""Tests of packs that a copy of a past tree needs: they must be kept during and after the copy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from s3fs_meta.errors import PastUnavailableError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.slices import DEFAULT_SLICES, Slices
from s3fs_meta.meta.tables import block_map, blocks, damage_marks, packs, pending
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import ROOT_INO, BlockIndex, PackId, PackState, Txg
from s3fs_meta.sync.progress import no_progress
from tests.fs.conftest import (
    BLOCK_BYTES,
    Volume,
    look,
    make_directory,
    make_file,
)
from tests.fs.past.copying import (
    SMALL,
    Copier,
    at_path,
    packs_of,
    pass_images,
    remove,
    remove_file,
    retain_nothing,
    shipped,
)
from tests.fs.trees.samples import COPY, assert_sound, fill, settled

pytestmark = pytest.mark.thorough


@asynccontextmanager
async def removed_with_open_point(
    volume: Volume, slices: Slices = DEFAULT_SLICES, **bounds: int
) -> AsyncIterator[tuple[Filesystem, Copier, Txg]]:
    """Mount a filesystem whose tree was removed after a txg that stays open for reading.

    Each file of the tree is in a separate pack, and the retention is zero. *bounds* are limits of
    ``PastClone``.
    """
    await retain_nothing(volume)
    async with volume.mounted(slices=slices) as fs:
        top = make_directory(fs, b"tree")
        for number in range(6):
            await fs.write(make_file(fs, b"%d" % number, top), 0, b"content %d" % number)
            await shipped(volume)
        txg = volume.session.link.txg
        copier = Copier(fs, volume.session, None, **bounds)
        async with copier.points.kept_open(txg):
            await remove(fs, b"tree")
            await shipped(volume)
            yield fs, copier, txg


async def test_copy_from_the_past_is_refused_if_a_needed_pack_is_deleted(volume: Volume) -> None:
    """The error names the deleted pack. A copy succeeds once another pack has the same content."""
    async with removed_with_open_point(volume) as (fs, copier, txg):
        keys = {row.object_key for row in packs.iterate(fs.db)}
        await pass_images(fs, volume)
        assert not keys & volume.memory.objects.keys()
        before = fs.db.counters.values()
        with pytest.raises(PastUnavailableError, match="pack/"):
            await copier.copy(txg)
        assert fs.db.counters.values() == before
        assert not fs.db.held_packs

        for number in range(6):
            other = make_file(fs, b"other %d" % number)
            await fs.write(other, 0, b"content %d" % number)
        await shipped(volume)
        await copier.copy(txg)
        copy = look(fs, b"copy").ino
        for number in range(6):
            content = await fs.read(look(fs, b"%d" % number, copy).ino, 0, 99)
            assert content == b"content %d" % number
        assert_sound(fs)


async def test_copy_from_the_past_is_refused_if_a_needed_pack_is_condemned(volume: Volume) -> None:
    """A copy is refused if a pack that it needs is condemned, even if the pack still exists."""
    async with removed_with_open_point(volume) as (fs, copier, txg):
        fs.db.begin_local()
        packs.condemn(fs.db, next(iter(packs_of(fs))))
        inodes_before = fs.db.counters.inodes
        with pytest.raises(PastUnavailableError, match="being deleted"):
            await copier.copy(txg)
        assert fs.db.counters.inodes == inodes_before


async def test_copy_of_damaged_past_content_requires_an_equal_intact_block(volume: Volume) -> None:
    async with removed_with_open_point(volume) as (fs, copier, txg):
        pack = next(iter(packs_of(fs)))
        fs.db.begin()
        damage_marks.add(fs.db, Mark(pack, 0))
        with pytest.raises(PastUnavailableError, match="damaged"):
            await copier.copy(txg)
        await fs.write(make_file(fs, b"other"), 0, b"content 0")
        await shipped(volume)
        await copier.copy(txg)
        copied = block_map.find(fs.db, look(fs, b"0", look(fs, b"copy").ino).ino, BlockIndex(0))
        assert copied is not None
        assert blocks.get(fs.db, copied).pack != pack


async def test_damage_found_during_a_copy_aborts_the_copy(volume: Volume) -> None:
    """If damage is found during a copy, the copy is removed. Other changes stay."""
    async with removed_with_open_point(volume, SMALL) as (fs, copier, txg):

        def mark(progress: TreeProgress) -> None:
            if progress.done == 3:
                make_file(fs, b"meanwhile")
                dead = [pack for pack, (live, _txg) in packs_of(fs).items() if not live]
                damage_marks.add(fs.db, Mark(dead[0], None))

        with pytest.raises(PastUnavailableError, match="damaged"):
            await copier.copy(txg, copied=mark)
        await settled(fs)
        assert fs.lookup(*COPY) is None
        assert fs.lookup(ROOT_INO, b"meanwhile") is not None
        assert fs.db.counters.inodes == 2
        assert all(live == 0 for live, _txg in packs_of(fs).values())
        assert_sound(fs)


async def test_garbage_collection_keeps_packs_that_a_running_copy_needs(volume: Volume) -> None:
    """Garbage collection between two slices of a copy keeps dead packs that the copy needs."""
    found: list[int] = []
    async with removed_with_open_point(volume, SMALL, revived_packs_max=1) as (fs, copier, txg):

        async def collect() -> None:
            dead = [row for row in packs.iterate(fs.db) if not row.live_bytes]
            found.append(len(dead))
            await pass_images(fs, volume)
            assert all(row.state is PackState.STORED for row in dead)
            assert {row.pack for row in dead} <= packs_of(fs).keys()

        copier.ship = collect
        await copier.copy(txg)
        await pass_images(fs, volume)
        await volume.evict()

        assert found[0] > 2
        copy = look(fs, b"copy").ino
        for number in range(6):
            content = await fs.read(look(fs, b"%d" % number, copy).ino, 0, 99)
            assert content == b"content %d" % number
        assert_sound(fs)


async def test_dead_pack_is_not_condemned_after_a_copy_uses_it(volume: Volume) -> None:
    """Garbage collection does not delete a dead pack that a copy has begun to use."""
    async with removed_with_open_point(volume, SMALL, revived_packs_max=1) as (fs, copier, txg):
        for number in range(3):
            make_directory(fs, b"image %d" % number)
            await volume.session.imager.make(no_progress)
        ended = trio.Event()

        async def collect() -> None:
            await volume.session.reclaimer.reclaim()
            ended.set()

        async def wait_for_garbage_collection() -> None:
            gate.open()
            await ended.wait()

        copier.ship = wait_for_garbage_collection
        async with trio.open_nursery() as nursery:
            gate = volume.store.hold("list")
            nursery.start_soon(collect)
            await gate.wait_started()
            while not volume.store.calls[-1].key.startswith("pack/"):
                former, gate = gate, volume.store.hold("list")
                former.open()
                await gate.wait_started()
            await copier.copy(txg)
        assert all(row.state is PackState.STORED for row in packs.iterate(fs.db))
        assert_sound(fs)


@pytest.mark.parametrize("is_one_file", [False, True])
async def test_copy_of_many_dead_packs_is_uploaded_in_several_changelogs(
    volume: Volume, is_one_file: bool
) -> None:
    """A copy uploads a changelog before it revives more packs than one changelog can list."""
    async with removed_with_open_point(volume, SMALL, revived_packs_max=4) as (fs, copier, txg):
        if is_one_file:
            large = make_file(fs, b"tree")
            for number in range(6):
                await fs.write(large, number * BLOCK_BYTES, b"piece %d" % number * 1000)
                await shipped(volume)
            txg = volume.session.link.txg  # noqa: PLW2901
            await remove_file(fs, b"tree")
            await shipped(volume)
        listed: list[int] = []

        async def count() -> None:
            listed.append(len(pending.pack_news(fs.db.connection)))
            await volume.session.shipper.ship()

        copier.ship = count
        await copier.copy(txg)
        assert listed == [4]


@pytest.mark.parametrize("lacks", [1, 5])
async def test_copy_first_verifies_every_needed_block_of_a_damaged_pack(
    volume: Volume, lacks: int
) -> None:
    """A copy is refused if a block that it needs is damaged in a pack with a damage mark."""
    async with volume.mounted() as fs:
        await fill(fs, make_file(fs, b"tree"), 6 * BLOCK_BYTES)
        txg = await shipped(volume)
        places = [one.pack_offset for one in blocks.in_pack(fs.db, PackId(1))]
        await remove_file(fs, b"tree")
        await shipped(volume)
        fs.db.begin()
        damage_marks.add(fs.db, Mark(PackId(1), places[lacks]))
        before = fs.db.counters.next_ino
        with pytest.raises(PastUnavailableError, match="damaged"):
            await Copier(fs, volume.session, slice_blocks=2).copy(txg)
        assert fs.db.counters.next_ino == before


async def test_clone_refuses_to_copy_lost_content_from_the_past(volume: Volume) -> None:
    async with volume.mounted() as fs:
        await fs.write(make_file(fs, b"tree"), 0, b"content")
        txg = await shipped(volume)
        copier = Copier(fs, volume.session)
        async with copier.points.kept_open(txg) as point:
            point.db.begin()
            point.db.run(
                "UPDATE blocks SET hash = NULL, pack = NULL, pack_offset = NULL, stored_bytes = NULL"
            )
            point.db.commit()
        with pytest.raises(PastUnavailableError, match="lost before it reached the bucket"):
            await copier.copy(txg)
        assert not fs.db.held_packs


async def test_garbage_collection_can_delete_packs_after_a_copy_was_refused(volume: Volume) -> None:
    async with removed_with_open_point(volume) as (fs, copier, txg):
        held = packs_of(fs)
        fs.db.begin()
        damage_marks.add(fs.db, Mark(max(held), None))
        with pytest.raises(PastUnavailableError):
            await copier.copy(txg)
        await pass_images(fs, volume)
        assert not held.keys() & packs_of(fs).keys()


async def test_copy_shares_content_that_compaction_moved_to_another_pack(volume: Volume) -> None:
    """A block that compaction moved is shared by its number, even if its former pack is deleted."""
    async with volume.mounted() as fs:
        top = make_directory(fs, b"tree")
        kept = make_file(fs, b"kept", top)
        await fs.write(kept, 0, b"kept" * 1000)
        await fill(fs, make_file(fs, b"large", top), 4 * BLOCK_BYTES)
        txg = await shipped(volume)
        fs.namespace.unlink(top, b"large")
        assert await volume.session.compactor.run_once() == 1
        await shipped(volume)
        moved = block_map.locate(fs.db, kept, BlockIndex(0))
        assert moved is not None
        assert moved.pack is not None
        assert moved.pack != 1

        await Copier(fs, volume.session).copy(txg, at_path(b"tree", b"kept"))

        copied = block_map.locate(fs.db, look(fs, b"copy").ino, BlockIndex(0))
        assert copied is not None
        assert (copied.block, copied.pack) == (moved.block, moved.pack)
