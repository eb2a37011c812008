"""Tests of copies of past trees: complete or absent, without downloads, from retained packs."""

import pytest
import trio

from s3fs_meta.errors import (
    DatabaseError,
    EntryExistsError,
    FsError,
    NoSpaceLeftError,
    PastUnavailableError,
)
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.mount_state import MountState
from tests.fs.conftest import (
    BLOCK_BYTES,
    ROOT,
    Volume,
    look,
    make_directory,
    make_file,
    sliced,
)
from tests.fs.past.copying import (
    AGAIN,
    SMALL,
    Copier,
    at_path,
    make_tree_with_acl,
    pack_reads,
    packs_of,
    remove,
    shipped,
)
from tests.fs.trees.samples import COPY, assert_sound, facts, fill, make_tree, settled
from tests.polling import WAIT_S_MAX

pytestmark = pytest.mark.thorough


class Killed(BaseException):
    """An exception that simulates that the daemon is killed."""


async def test_removed_tree_is_copied_from_the_past_without_downloads(volume: Volume) -> None:
    """Rows, content, xattrs, ACLs, hard links, devices and suid bits match the point in time."""
    async with volume.mounted() as fs:
        top = await make_tree_with_acl(fs)
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


async def test_copies_from_the_past_share_blocks_that_are_still_in_use(volume: Volume) -> None:
    """A second copy of the past adds no blocks, and each copy can be changed separately."""
    async with volume.mounted() as fs:
        await make_tree_with_acl(fs)
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


async def test_copy_of_an_overwritten_file_adds_only_its_overwritten_blocks(volume: Volume) -> None:
    """A past version of a file, copied next to the current file, shares all unchanged blocks."""
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
async def test_past_tree_that_is_copied_in_small_slices_equals_its_source(
    fs: Filesystem, volume: Volume
) -> None:
    """fsck finds no damage after any slice of a copy, even if a file exceeds a slice."""
    top = await make_tree_with_acl(fs)
    wanted = await facts(fs, top)
    txg = await shipped(volume)
    await remove(fs, b"tree")
    await shipped(volume)

    await Copier(fs, volume.session).copy(txg, copied=lambda _progress: assert_sound(fs))

    assert await facts(fs, look(fs, b"copy").ino) == wanted
    assert_sound(fs)


async def test_copy_from_the_past_excludes_changes_that_were_not_uploaded(volume: Volume) -> None:
    async with volume.mounted() as fs:
        file = make_file(fs, b"file")
        await fs.write(file, 0, b"shipped")
        txg = await shipped(volume)
        await fs.write(file, 0, b"other")
        await Copier(fs, volume.session).copy(txg, at_path(b"file"))
        assert await fs.read(look(fs, b"copy").ino, 0, 9) == b"shipped"
        assert await fs.read(file, 0, 9) == b"othered"


async def test_root_directory_and_single_entries_of_the_past_can_be_copied(volume: Volume) -> None:
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


async def test_copy_from_the_past_to_an_existing_name_is_refused(volume: Volume) -> None:
    async with volume.mounted() as fs:
        await make_tree(fs)
        txg = await shipped(volume)
        inodes_before = fs.db.counters.inodes
        with pytest.raises(EntryExistsError):
            await Copier(fs, volume.session).copy(txg, target=CloneTarget(ROOT_INO, b"tree"))
        assert fs.db.counters.inodes == inodes_before


async def test_copied_names_with_equal_hashes_are_found_by_lookup(volume: Volume) -> None:
    """After a copy of names with equal hashes, a lookup searches all names with this hash."""
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


async def test_copy_from_a_past_state_with_another_cookie_key_is_refused(volume: Volume) -> None:
    """A new cookie key, which fsck can create, gives names new positions in directories."""
    async with volume.mounted() as fs:
        await make_tree(fs)
        txg = await shipped(volume)
        fs.db.take_cookie_key(bytes(16))
        with pytest.raises(PastUnavailableError, match="positions of names in directories"):
            await Copier(fs, volume.session).copy(txg)


async def test_past_directories_that_form_a_cycle_are_not_copied(volume: Volume) -> None:
    """A cycle in a damaged or forged past state raises an error instead of an endless copy."""
    async with volume.mounted() as fs:
        top = make_directory(fs, b"tree")
        below = make_directory(fs, b"below", top)
        make_directory(fs, b"again", below)
        fs.db.begin()
        fs.db.run("UPDATE dentries SET ino = ? WHERE parent = ?", (top, below))
        txg = await shipped(volume)

        with (
            trio.fail_after(WAIT_S_MAX),
            pytest.raises(PastUnavailableError, match="contains itself"),
        ):
            await Copier(fs, volume.session).copy(txg)

        assert fs.lookup(ROOT_INO, b"copy") is None


@pytest.mark.parametrize("sizes", [[BLOCK_BYTES] * 6, [6 * BLOCK_BYTES]])
async def test_copy_that_exceeds_the_capacity_fails_early(volume: Volume, sizes: list[int]) -> None:
    """Each slice of a copy checks the capacity, between files and within a file."""
    async with volume.mounted(slices=SMALL) as fs:
        top = make_directory(fs, b"tree")
        for number, size_bytes in enumerate(sizes):
            await fill(fs, make_file(fs, b"%d" % number, top), size_bytes)
        txg = await shipped(volume)
        await remove(fs, b"tree")
        fs.set_capacity(BLOCK_BYTES)
        made: list[int] = []
        fs.db.listeners.of_opening.append(lambda: made.append(fs.db.counters.block_bytes))
        with pytest.raises(NoSpaceLeftError):
            await Copier(fs, volume.session).copy(txg)
        assert max(made) <= 2 * BLOCK_BYTES


@pytest.mark.parametrize("attributes_of", ["top", "file"])
async def test_database_error_during_a_copy_undoes_the_copy(
    volume: Volume, attributes_of: str
) -> None:
    """A copy that fails at a damaged row is removed, and later changes are not affected."""
    async with volume.mounted(slices=SMALL) as fs:
        top = make_directory(fs, b"tree")
        for number in range(4):
            await fs.write(make_file(fs, b"%d" % number, top), 0, b"content %d" % number)
        damaged = top if attributes_of == "top" else look(fs, b"3", top).ino
        fs.xattrs.set(damaged, b"user.a", b"1", ROOT)
        txg = await shipped(volume)
        await remove(fs, b"tree")
        await shipped(volume)
        copier = Copier(fs, volume.session)
        async with copier.points.kept_open(txg) as point:
            point.db.begin()
            point.db.run("DROP TABLE xattrs")
            point.db.run("CREATE TABLE xattrs (ino INTEGER, name BLOB, value BLOB)")
            for _ in range(2):
                point.db.run("INSERT INTO xattrs VALUES (?, ?, ?)", (damaged, b"user.a", b"1"))
            point.db.commit()
        fs.xattrs.set(ROOT_INO, b"user.a", b"1", ROOT)  # This change does not change any counter.
        await shipped(volume)
        with pytest.raises(DatabaseError):
            await copier.copy(txg)
        assert fs.lookup(*COPY) is None
        assert fs.db.counters.txg == volume.session.link.next_txg
        make_file(fs, b"next")
        assert_sound(fs)
        await settled(fs)
        assert (fs.db.counters.inodes, fs.db.counters.block_bytes) == (2, 0)
        assert all(live == 0 for live, _txg in packs_of(fs).values())
        assert_sound(fs)


async def test_two_concurrent_copies_from_the_past_equal_their_source(volume: Volume) -> None:
    """A finished copy releases all held packs, which must not harm the other copy."""
    async with volume.mounted(slices=SMALL) as fs:
        wanted = await facts(fs, await make_tree_with_acl(fs))
        txg = await shipped(volume)
        await remove(fs, b"tree")
        await shipped(volume)
        copier = Copier(fs, volume.session)
        async with trio.open_nursery() as nursery:
            for target in (COPY, AGAIN):
                nursery.start_soon(copier.copy, txg, None, target)
        for target in (COPY, AGAIN):
            assert await facts(fs, look(fs, target.name).ino) == wanted
        assert_sound(fs)


async def test_name_that_another_process_creates_during_a_copy_is_kept(volume: Volume) -> None:
    async with volume.mounted(slices=SMALL) as fs:
        await make_tree_with_acl(fs)
        txg = await shipped(volume)
        other: list[Ino] = []

        def make_target(_progress: TreeProgress) -> None:
            if not other:
                other.append(make_file(fs, COPY.name))

        with pytest.raises(EntryExistsError):
            await Copier(fs, volume.session).copy(txg, copied=make_target)
        await settled(fs)
        assert look(fs, COPY.name).ino == other[0]
        assert_sound(fs)


async def test_copy_is_removed_if_its_target_directory_is_removed(volume: Volume) -> None:
    async with volume.mounted(slices=SMALL) as fs:
        await make_tree_with_acl(fs)
        txg = await shipped(volume)
        await remove(fs, b"tree")
        place = make_directory(fs, b"place")

        def remove_place(_progress: TreeProgress) -> None:
            if fs.lookup(ROOT_INO, b"place") is not None:
                fs.namespace.remove_directory(ROOT_INO, b"place")

        target = CloneTarget(place, b"copy")
        with pytest.raises(FsError):
            await Copier(fs, volume.session).copy(txg, target=target, copied=remove_place)
        await settled(fs)
        assert fs.db.counters.dentries == 0
        assert_sound(fs)


async def test_capacity_limits_copies_of_removed_content(volume: Volume) -> None:
    async with volume.mounted(slices=SMALL) as fs:
        await make_tree_with_acl(fs)
        txg = await shipped(volume)
        await remove(fs, b"tree")
        fs.set_capacity(3 * BLOCK_BYTES)
        with pytest.raises(NoSpaceLeftError):
            await Copier(fs, volume.session).copy(txg)
        await settled(fs)
        assert fs.lookup(*COPY) is None
        assert (fs.db.counters.inodes, fs.db.counters.block_bytes) == (1, 0)
        assert_sound(fs)


# --- crashes and takeovers by other hosts ------------------------------------------------------


@pytest.mark.parametrize("slice_number", range(1, 8))
async def test_kill_during_a_copy_leaves_no_partial_copy(volume: Volume, slice_number: int) -> None:
    """The next mount removes an unfinished copy, and the packs that it revived are dead again."""
    count = 0

    def kill(_progress: TreeProgress) -> None:
        nonlocal count
        count += 1
        if count == slice_number:
            volume.session.status.enter(MountState.DEGRADED, "so that no task tidies")
            raise Killed

    async with volume.mounted(slices=SMALL) as fs:
        wanted = await facts(fs, await make_tree_with_acl(fs))
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
async def test_kill_after_a_copy_leaves_a_complete_copy(volume: Volume, is_shipped: bool) -> None:
    async with volume.mounted(slices=SMALL) as fs:
        wanted = await facts(fs, await make_tree_with_acl(fs))
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


async def test_copy_from_the_past_can_be_restored_from_the_bucket_on_another_host(
    volume: Volume,
) -> None:
    """Another host restores a copied past tree and its content, and fsck finds no damaged row."""
    async with volume.mounted() as fs:
        wanted = await facts(fs, await make_tree_with_acl(fs))
        txg = await shipped(volume)
        await remove(fs, b"tree")
        await shipped(volume)
        await Copier(fs, volume.session).copy(txg)
        await shipped(volume)
        found = packs_of(fs)
        await volume.session.close()
    other = volume.elsewhere()
    async with other.mounted() as fs:
        assert packs_of(fs) == found
        assert await facts(fs, look(fs, b"copy").ino) == wanted
        assert_sound(fs)
