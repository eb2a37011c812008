"""Copies of trees as they were: complete or absent, without a download, from retained packs only."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import EntryExistsError, NoSpaceLeftError, PastUnavailableError
from s3fs_meta.fs import acl
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.past import past_clone
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.slices import DEFAULT_SLICES, Slices
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.meta.tables import block_map, blocks, damage_marks, inodes, packs, pending
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import ROOT_INO, BlockIndex, Ino, PackId, PackState, Txg
from s3fs_meta.mount_state import MountState
from s3fs_meta.sync.progress import no_progress
from s3fs_meta.sync.superblock.changes import change
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.unlocking import Passphrase
from tests.fs.conftest import (
    BLOCK_BYTES,
    NAMED,
    ROOT,
    Volume,
    look,
    make_directory,
    make_file,
    sliced,
)
from tests.fs.past.copying import Copier, at_path
from tests.fs.trees.samples import COPY, assert_sound, facts, fill, make_tree, settled

_images = itertools.count()
SMALL = Slices(cloned_names=2, directories=1, shared_blocks=2)
AGAIN = CloneTarget(ROOT_INO, b"again")


class Killed(BaseException):
    """The death of the daemon."""


async def make_rich_tree(fs: Filesystem) -> Ino:
    """Make a tree with every property that a copy keeps."""
    top = await make_tree(fs)
    below = look(fs, b"below", top).ino
    sparse = make_file(fs, b"sparse", below, mode=0o4755)
    await fs.write(sparse, 3 * BLOCK_BYTES, b"end")
    await fs.write(sparse, BLOCK_BYTES, b"middle")
    linked = look(fs, b"full 1", top).ino
    fs.namespace.link(linked, below, b"linked")
    fs.namespace.link(linked, below, b"linked again")
    fs.namespace.make_node(top, b"device", 0o020600, ROOT, rdev=0x0103)
    fs.xattrs.set(below, acl.ACCESS, NAMED, ROOT)
    await fill(fs, make_file(fs, b"large", top), 5 * BLOCK_BYTES)
    return top


async def shipped(volume: Volume) -> Txg:
    """Upload everything; return the txg."""
    await volume.upload()
    return volume.session.link.txg


async def remove(fs: Filesystem, name: bytes) -> None:
    """Remove a tree of the root with all its rows."""
    fs.tree_removal.remove(ROOT_INO, name, look(fs, name).ino)
    await settled(fs)


async def remove_file(fs: Filesystem, name: bytes) -> None:
    """Remove a file of the root with all its rows."""
    ino = look(fs, name).ino
    fs.namespace.unlink(ROOT_INO, name)
    await fs.orphans.purge(ino)


def pack_reads(volume: Volume) -> int:
    """Return how many requests have read packs."""
    calls = volume.store.calls
    return sum(one.method.startswith("get") and one.key.startswith("pack/") for one in calls)


def packs_of(fs: Filesystem) -> dict[PackId, tuple[int, Txg | None]]:
    """Return the live bytes of the packs, and when they died."""
    return {row.pack: (row.live_bytes, row.died_txg) for row in packs.iterate(fs.db)}


async def retain_nothing(volume: Volume) -> None:
    """Set a retention of zero, so that garbage collection deletes dead packs after two images."""

    def amended(superblock: Superblock, keyring: Keyring) -> Superblock:
        return superblock_codec.amend(superblock, keyring, retention_s=0)

    await change(volume.store, Remembered(volume.home / "-"), Passphrase(bytes), amended)


async def pass_images(fs: Filesystem, volume: Volume, count: int = 3) -> None:
    """Make images, each after a change; each one deletes garbage."""
    for _ in range(count):
        make_directory(fs, b"before image %d" % next(_images))
        await volume.session.make_image()


async def test_removed_tree_comes_back_without_a_download(volume: Volume) -> None:
    """Rows, content, xattrs, ACLs, hard links, devices and suid are those of the past."""
    async with volume.mounted() as fs:
        top = await make_rich_tree(fs)
        wanted = await facts(fs, top)
        txg = await shipped(volume)
        await remove(fs, b"tree")
        await shipped(volume)
        await volume.evict()
        died = packs_of(fs)
        reads = pack_reads(volume)

        await Copier(fs, volume.session).copy(txg)

        assert pack_reads(volume) == reads
        assert await facts(fs, look(fs, b"copy").ino) == wanted
        assert all(live == 0 and txg for live, txg in died.values())
        assert all(live and txg is None for live, txg in packs_of(fs).values())
        assert not fs.db.held_packs
        assert_sound(fs)
        await shipped(volume)
        assert_sound(fs)


async def test_blocks_that_still_live_are_shared(volume: Volume) -> None:
    """A second copy adds no blocks; the copy of a copy and its original are independent."""
    async with volume.mounted() as fs:
        await make_rich_tree(fs)
        txg = await shipped(volume)
        before = fs.db.counters.block_bytes, fs.db.counters.next_block
        copier = Copier(fs, volume.session)
        await copier.copy(txg)
        assert (fs.db.counters.block_bytes, fs.db.counters.next_block) == before
        await remove(fs, b"tree")
        await remove(fs, b"copy")
        assert fs.db.counters.block_bytes == 0
        await copier.copy(txg)
        once = fs.db.counters.block_bytes, fs.db.counters.next_block
        await copier.copy(txg, target=AGAIN)
        assert (fs.db.counters.block_bytes, fs.db.counters.next_block) == once
        assert once[0] == before[0]
        wanted = await facts(fs, look(fs, b"again").ino)
        await fs.write(look(fs, b"large", look(fs, b"copy").ino).ino, 0, b"changed")
        assert await facts(fs, look(fs, b"again").ino) == wanted
        assert_sound(fs)


async def test_overwritten_file_is_brought_back_beside_its_present(volume: Volume) -> None:
    """Only the blocks that were overwritten get rows; the others are shared."""
    async with volume.mounted() as fs:
        file = make_file(fs, b"file")
        content = await fill(fs, file, 4 * BLOCK_BYTES)
        txg = await shipped(volume)
        await fs.write(file, BLOCK_BYTES, b"x" * BLOCK_BYTES)
        await shipped(volume)
        block_bytes = fs.db.counters.block_bytes

        await Copier(fs, volume.session).copy(txg, at_path(b"file"))

        assert await fs.read(look(fs, b"copy").ino, 0, 4 * BLOCK_BYTES) == content
        assert fs.db.counters.block_bytes == block_bytes + BLOCK_BYTES
        assert_sound(fs)


@sliced(cloned_names=2, directories=2, shared_blocks=2)
async def test_small_slices_give_the_same_copy(fs: Filesystem, volume: Volume) -> None:
    """After each slice fsck is clean; a file with more blocks than a slice is complete."""
    top = await make_rich_tree(fs)
    wanted = await facts(fs, top)
    txg = await shipped(volume)
    await remove(fs, b"tree")
    await shipped(volume)

    await Copier(fs, volume.session).copy(txg, copied=lambda _progress: assert_sound(fs))

    assert await facts(fs, look(fs, b"copy").ino) == wanted
    assert_sound(fs)


async def test_unshipped_changes_are_not_in_a_copy_of_the_past(volume: Volume) -> None:
    async with volume.mounted() as fs:
        file = make_file(fs, b"file")
        await fs.write(file, 0, b"shipped")
        txg = await shipped(volume)
        await fs.write(file, 0, b"other")
        await Copier(fs, volume.session).copy(txg, at_path(b"file"))
        assert await fs.read(look(fs, b"copy").ino, 0, 9) == b"shipped"
        assert await fs.read(file, 0, 9) == b"othered"


async def test_copy_of_the_whole_root_and_of_single_entries(volume: Volume) -> None:
    async with volume.mounted() as fs:
        top = await make_tree(fs)
        wanted = await facts(fs, top)
        txg = await shipped(volume)
        copier = Copier(fs, volume.session)
        await copier.copy(txg, lambda db: inodes.get(db, ROOT_INO), CloneTarget(ROOT_INO, b"all"))
        assert await facts(fs, look(fs, b"tree", look(fs, b"all").ino).ino) == wanted
        for names in ((b"tree", b"pipe"), (b"tree", b"below", b"link"), (b"tree", b"full 0")):
            target = CloneTarget(ROOT_INO, names[-1] + b" again")
            await copier.copy(txg, at_path(*names), target)
        assert fs.readlink(look(fs, b"link again").ino) == b"target"
        assert await fs.read(look(fs, b"full 0 again").ino, 0, 99) == b"content"
        assert_sound(fs)


async def test_target_that_exists_is_refused(volume: Volume) -> None:
    async with volume.mounted() as fs:
        await make_tree(fs)
        txg = await shipped(volume)
        inodes_before = fs.db.counters.inodes
        with pytest.raises(EntryExistsError):
            await Copier(fs, volume.session).copy(txg, target=CloneTarget(ROOT_INO, b"tree"))
        assert fs.db.counters.inodes == inodes_before


async def test_names_with_equal_hashes_are_found_in_the_copy(volume: Volume) -> None:
    """While no two names of the present share a hash, names are looked up without a search."""
    async with volume.mounted() as fs:
        fs.db.name_hash = lambda _name: 1 << 40
        top = make_directory(fs, b"tree")
        for name in (b"one", b"two", b"three"):
            make_file(fs, name, top)
        txg = await shipped(volume)
        await remove(fs, b"tree")
        fs.db.shares_hashes = False

        await Copier(fs, volume.session).copy(txg, lambda db: inodes.get(db, top))

        assert fs.db.shares_hashes
        copy = look(fs, b"copy").ino
        fs.namespace.unlink(copy, b"two")
        assert fs.lookup(copy, b"two") is None
        assert look(fs, b"one", copy).ino != look(fs, b"three", copy).ino


async def test_other_key_of_name_hashes_is_refused(volume: Volume) -> None:
    """After fsck --rebuild names are at other positions."""
    async with volume.mounted() as fs:
        await make_tree(fs)
        txg = await shipped(volume)
        fs.db.take_cookie_key(bytes(16))
        with pytest.raises(PastUnavailableError, match="names have other positions"):
            await Copier(fs, volume.session).copy(txg)


async def test_capacity_limits_content_that_comes_back(volume: Volume) -> None:
    async with volume.mounted(slices=SMALL) as fs:
        await make_rich_tree(fs)
        txg = await shipped(volume)
        await remove(fs, b"tree")
        fs.set_capacity(3 * BLOCK_BYTES)
        with pytest.raises(NoSpaceLeftError):
            await Copier(fs, volume.session).copy(txg)
        await settled(fs)
        assert fs.lookup(*COPY) is None
        assert (fs.db.counters.inodes, fs.db.counters.block_bytes) == (1, 0)
        assert_sound(fs)


# --- packs -------------------------------------------------------------------------------------


@asynccontextmanager
async def removed_with_open_point(
    volume: Volume, slices: Slices = DEFAULT_SLICES
) -> AsyncIterator[tuple[Filesystem, Copier, Txg]]:
    """Mount a filesystem whose tree was removed after a txg that stays open for reading.

    Each file of the tree is in a pack of its own, and the retention is zero.
    """
    await retain_nothing(volume)
    async with volume.mounted(slices=slices) as fs:
        top = make_directory(fs, b"tree")
        for number in range(6):
            await fs.write(make_file(fs, b"%d" % number, top), 0, b"content %d" % number)
            await shipped(volume)
        txg = volume.session.link.txg
        copier = Copier(fs, volume.session)
        async with copier.points.kept_open(txg):
            await remove(fs, b"tree")
            await shipped(volume)
            yield fs, copier, txg


async def test_copy_that_needs_a_deleted_pack_is_refused(volume: Volume) -> None:
    """The error names the pack, and nothing has changed; equal content elsewhere is used."""
    async with removed_with_open_point(volume) as (fs, copier, txg):
        keys = {row.object_key for row in packs.iterate(fs.db)}
        await pass_images(fs, volume)
        assert not keys & volume.store.inner.objects.keys()  # type: ignore[attr-defined]
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


async def test_copy_that_needs_a_condemned_pack_is_refused(volume: Volume) -> None:
    """The pack is still in the bucket, but a deletion may be on its way."""
    async with removed_with_open_point(volume) as (fs, copier, txg):
        fs.db.begin_local()
        packs.condemn(fs.db, next(iter(packs_of(fs))))
        inodes_before = fs.db.counters.inodes
        with pytest.raises(PastUnavailableError, match="being deleted"):
            await copier.copy(txg)
        assert fs.db.counters.inodes == inodes_before


async def test_content_in_a_damaged_pack_is_refused_unless_it_is_elsewhere(volume: Volume) -> None:
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


async def test_damage_found_during_the_copy_ends_it(volume: Volume) -> None:
    """Nothing of the copy stays, and other changes of that time do."""
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


async def test_garbage_collection_between_all_slices_deletes_no_needed_pack(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packs that no slice has reached yet are dead, and their retention has passed."""
    monkeypatch.setattr(past_clone, "REVIVED_PACKS_MAX", 1)
    found: list[int] = []
    async with removed_with_open_point(volume, SMALL) as (fs, copier, txg):

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


async def test_pack_found_dead_before_it_was_held_is_not_condemned(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage collection finds dead packs, and continues while a copy of them is made."""
    monkeypatch.setattr(past_clone, "REVIVED_PACKS_MAX", 1)
    async with removed_with_open_point(volume, SMALL) as (fs, copier, txg):
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


async def test_copies_of_many_dead_packs_are_shipped_now_and_then(
    volume: Volume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changelog can list a limited number of packs."""
    monkeypatch.setattr(past_clone, "REVIVED_PACKS_MAX", 4)
    async with removed_with_open_point(volume, SMALL) as (fs, copier, txg):
        listed: list[int] = []

        async def count() -> None:
            listed.append(len(pending.pack_news(fs.db.connection)))
            await volume.session.shipper.ship()

        copier.ship = count
        await copier.copy(txg)
        assert listed == [4]


@pytest.mark.parametrize("lacks", [1, 5])
async def test_every_block_in_doubtful_packs_is_checked_before_the_copy(
    volume: Volume, monkeypatch: pytest.MonkeyPatch, lacks: int
) -> None:
    """Of a marked pack some records are intact; nothing changes if one of them is not."""
    monkeypatch.setattr(past_clone, "WALK_SLICE_BLOCKS", 2)
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
            await Copier(fs, volume.session).copy(txg)
        assert fs.db.counters.next_ino == before


async def test_copy_of_content_that_the_past_had_lost_is_refused(volume: Volume) -> None:
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


async def test_packs_of_a_refused_copy_can_be_deleted(volume: Volume) -> None:
    async with removed_with_open_point(volume) as (fs, copier, txg):
        held = packs_of(fs)
        fs.db.begin()
        damage_marks.add(fs.db, Mark(max(held), None))
        with pytest.raises(PastUnavailableError):
            await copier.copy(txg)
        await pass_images(fs, volume)
        assert not held.keys() & packs_of(fs).keys()


async def test_content_that_was_moved_to_another_pack_is_shared(volume: Volume) -> None:
    """The block has its number still, and its former pack may be gone."""
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


# --- crashes and other hosts -------------------------------------------------------------------


@pytest.mark.parametrize("slice_number", range(1, 8))
async def test_kill_after_any_slice_leaves_no_copy(volume: Volume, slice_number: int) -> None:
    """The next mount removes the unfinished copy, and its packs are dead again."""
    count = 0

    def kill(_progress: TreeProgress) -> None:
        nonlocal count
        count += 1
        if count == slice_number:
            volume.session.status.enter(MountState.DEGRADED, "so that no task tidies")
            raise Killed

    async with volume.mounted(slices=SMALL) as fs:
        wanted = await facts(fs, await make_rich_tree(fs))
        txg = await shipped(volume)
        await remove(fs, b"tree")
        await shipped(volume)
        copier = Copier(fs, volume.session)
        with pytest.raises(Killed):
            await copier.copy(txg, copied=kill)

    async with volume.mounted() as fs:
        assert fs.lookup(*COPY) is None
        assert_sound(fs)
        fs.adopt_orphans()
        await settled(fs)
        assert fs.db.counters.inodes == 1
        assert all(live == 0 for live, _txg in packs_of(fs).values())
        assert_sound(fs)
        await Copier(fs, volume.session).copy(txg)
        assert await facts(fs, look(fs, b"copy").ino) == wanted


@pytest.mark.parametrize("is_shipped", [False, True])
async def test_kill_after_the_copy_leaves_it_complete(volume: Volume, is_shipped: bool) -> None:
    async with volume.mounted(slices=SMALL) as fs:
        wanted = await facts(fs, await make_rich_tree(fs))
        txg = await shipped(volume)
        await remove(fs, b"tree")
        await shipped(volume)
        await Copier(fs, volume.session).copy(txg)
        fs.db.commit()
        if is_shipped:
            await shipped(volume)

    async with volume.mounted() as fs:
        assert await facts(fs, look(fs, b"copy").ino) == wanted
        assert_sound(fs)


async def test_bucket_alone_has_the_copy(volume: Volume) -> None:
    """Another machine restores it, with content, and fsck of its rows is clean."""
    async with volume.mounted() as fs:
        wanted = await facts(fs, await make_rich_tree(fs))
        txg = await shipped(volume)
        await remove(fs, b"tree")
        await shipped(volume)
        await Copier(fs, volume.session).copy(txg)
        await shipped(volume)
        found = packs_of(fs)
        await volume.session.close()
    elsewhere = volume.home / "elsewhere"
    elsewhere.mkdir()
    other = Volume(elsewhere)
    other.store = volume.store
    async with other.mounted() as fs:
        assert packs_of(fs) == found
        assert await facts(fs, look(fs, b"copy").ino) == wanted
        assert_sound(fs)
