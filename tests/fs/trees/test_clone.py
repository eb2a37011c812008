"""Tests of copies of trees: they are complete or absent and share content with their source."""

import pytest
import trio

from s3fs_meta.cache.crash_safety import recovery
from s3fs_meta.errors import (
    DatabaseError,
    EntryExistsError,
    LostBlockError,
    MetadataError,
    NoEntryError,
    NoSpaceLeftError,
    ReadOnlyStateError,
    S3fsError,
)
from s3fs_meta.fs import acl
from s3fs_meta.fs.acl import AclEntry
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.removed_trees import TreeProgress
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.fs.trees.remove import yield_to_tasks
from s3fs_meta.limits import FILE_BYTES_MAX, MIB
from s3fs_meta.meta.tables import block_map, blocks, cached_blocks, inodes
from s3fs_meta.model import ROOT_INO, BlockIndex, BlockState, Ino
from s3fs_meta.mount_state import MountState
from tests.fs.conftest import (
    BLOCK_BYTES,
    ROOT,
    USER,
    Volume,
    exists,
    look,
    make_directory,
    make_file,
    sliced,
    whole,
)
from tests.fs.trees.samples import (
    COPY,
    assert_sound,
    clone,
    facts,
    fill,
    ignore,
    make_rich_tree,
    make_tree,
    settled,
)
from tests.polling import WAIT_S_MAX, until


async def _make_linked_tree(fs: Filesystem) -> Ino:
    """Create a sample tree with a file that has another name outside the tree."""
    top = await make_rich_tree(fs)
    fs.namespace.link(look(fs, b"full 2", top).ino, ROOT_INO, b"leads out")
    return top


async def test_copy_of_a_tree_has_all_properties_of_its_source(
    fs: Filesystem, volume: Volume
) -> None:
    """A copy and its source have equal rows, content, extended attributes and hard links."""
    top = await _make_linked_tree(fs)
    everybody = [AclEntry(acl.USER_OBJ, 7), AclEntry(acl.GROUP_OBJ, 5), AclEntry(acl.OTHER, 5)]
    fs.xattrs.set(look(fs, b"below", top).ino, acl.DEFAULT, acl.encode(everybody), ROOT)
    wanted = await facts(fs, top)
    volume.clock.later()
    reported = await clone(fs)

    copy = look(fs, b"copy")
    found = await facts(fs, copy.ino)
    leads_out = wanted[b"/full 2"][0]
    assert found.pop(b"/full 2")[0] == leads_out._replace(nlink=1)  # type: ignore[attr-defined]
    del wanted[b"/full 2"]
    assert found == wanted
    assert reported[-1] == (len(wanted) + 1, 0)
    assert copy.ctime_ns == copy.btime_ns == volume.clock.time_ns
    assert fs.getattr(ROOT_INO).nlink == 4
    assert_sound(fs)


async def test_copy_shares_uploaded_content(fs: Filesystem, volume: Volume) -> None:
    """A copy shares the blocks of its source. A write to a copied file changes only this file."""
    top = await _make_linked_tree(fs)
    await volume.upload()
    block_bytes = fs.db.counters.block_bytes
    wanted = await facts(fs, top)
    await clone(fs)
    copy = look(fs, b"copy").ino

    assert fs.db.counters.block_bytes == block_bytes
    assert not cached_blocks.in_state(volume.session.db, BlockState.DIRTY)
    full = look(fs, b"full 0", copy).ino
    located = block_map.locate(fs.db, full, BlockIndex(0))
    assert located is not None
    # Three files with equal content share the block, and so do their copies.
    assert blocks.get(fs.db, located.block).refs == 6
    await fs.write(full, 0, b"CONTENT")
    await fs.data.truncate(look(fs, b"sparse", look(fs, b"below", copy).ino).ino, 0)
    assert await facts(fs, top) == wanted
    assert_sound(fs)


async def test_after_a_power_cut_a_copy_has_no_later_content_of_its_original(
    fs: Filesystem, volume: Volume
) -> None:
    """A copied block must not be restored from its original, which was overwritten in place."""
    ino = make_file(fs, b"f")
    await fs.write(ino, 0, b"old")
    await volume.session.durability.sync_all()
    await clone(fs, b"f")
    copy = look(fs, b"copy").ino
    await fs.write(ino, 0, b"NEW")
    volume.commit()
    located = block_map.locate(fs.db, copy, BlockIndex(0))
    assert located is not None
    files, opened = volume.session.files, volume.session.volume

    files.cut_after(located.block, 0)  # This call simulates a power cut.
    await recovery.restore_copies(fs.db, files, opened.keyring, volume.store)
    recovery.distrust(fs.db, files)

    with pytest.raises(LostBlockError):
        await fs.read(copy, 0, 3)
    assert await fs.read(ino, 0, 3) == b"NEW"


async def test_tree_copy_includes_dirty_content(fs: Filesystem, volume: Volume) -> None:
    """Dirty and sealed blocks are copied. A later write changes only one of the two files."""
    top = await _make_linked_tree(fs)
    full = look(fs, b"full 0", top).ino
    volume.session.db.begin()
    volume.session.cache.seal([cached_blocks.in_state(volume.session.db, BlockState.DIRTY)[0]])
    await clone(fs)
    copy = look(fs, b"full 0", look(fs, b"copy").ino).ino
    await fs.write(full, 0, b"another")
    await fs.write(copy, 3, b"TENT")

    assert await fs.read(full, 0, 99) == b"another"
    assert await fs.read(copy, 0, 99) == b"conTENT"
    assert_sound(fs)


@pytest.mark.parametrize(
    "slices",
    [
        Slices(cloned_names=2, directories=2, shared_blocks=blocks, cloned_indexes=blocks)
        for blocks in (1, 3)
    ],
    ids=["one block", "three blocks"],
)
async def test_tree_copied_in_small_slices_equals_its_source(
    fs: Filesystem, volume: Volume
) -> None:
    """A copy in small slices equals its source, and fsck finds no damage after each slice."""
    top = await _make_linked_tree(fs)
    await volume.upload()
    await fs.write(look(fs, b"full 0", top).ino, 2 * BLOCK_BYTES, b"unshipped")
    fs.namespace.unlink(ROOT_INO, b"leads out")
    wanted = await facts(fs, top)

    await fs.tree_clone.clone(
        CloneTarget(ROOT_INO, b"tree"), top, COPY, lambda _names: assert_sound(fs)
    )

    assert await facts(fs, look(fs, b"copy").ino) == wanted
    assert_sound(fs)


@pytest.mark.parametrize("is_large", [False, True])
@sliced(cloned_indexes=2)
async def test_file_that_is_unlinked_during_its_copy_keeps_its_content(
    fs: Filesystem, is_large: bool
) -> None:
    top = make_directory(fs, b"tree")
    file = make_file(fs, b"f", top)
    for index in range(5 if is_large else 1):
        await fs.write(file, index * BLOCK_BYTES, b"%d" % index * BLOCK_BYTES)
    content = await fs.read(file, 0, 10 * MIB)

    def unlink(_progress: TreeProgress) -> None:
        if fs.lookup(top, b"f") is not None:
            trio.lowlevel.current_trio_token().run_sync_soon(fs.namespace.unlink, top, b"f")

    await fs.tree_clone.clone(CloneTarget(ROOT_INO, b"tree"), top, COPY, unlink)
    copy = look(fs, b"f", look(fs, b"copy").ino).ino
    assert fs.lookup(top, b"f") is None
    assert await fs.read(copy, 0, 10 * MIB) == content
    assert not exists(fs, file)
    assert_sound(fs)


@sliced(cloned_indexes=2)
async def test_copy_of_a_file_that_is_truncated_meanwhile_is_a_prefix_of_the_former_content(
    fs: Filesystem,
) -> None:
    """A file truncated during its copy is copied as a prefix of its former content."""
    file = make_file(fs, b"file")
    for index in range(5):
        await fs.write(file, index * BLOCK_BYTES, b"%d" % index * BLOCK_BYTES)
    content = await fs.read(file, 0, 10 * MIB)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clone, fs, b"file")
        while fs.db.counters.inodes == 2:  # noqa: ASYNC110 - a copy has no event to wait for
            await trio.lowlevel.checkpoint()
        await fs.data.truncate(file, 3)
    copy = await fs.read(look(fs, b"copy").ino, 0, 10 * MIB)
    assert len(copy) < len(content)
    assert content.startswith(copy)
    assert_sound(fs)


@pytest.mark.parametrize("is_uploaded", [False, True])
@pytest.mark.parametrize("blocks_before", [1, 2, 4])
@sliced(cloned_indexes=2)
async def test_copy_of_a_file_that_grows_during_the_copy_is_a_prefix_of_its_content(
    fs: Filesystem,
    volume: Volume,
    monkeypatch: pytest.MonkeyPatch,
    blocks_before: int,
    is_uploaded: bool,
) -> None:
    """No part of the copy is zeros if the source never had zeros there."""
    file = make_file(fs, b"file")
    before = await fill(fs, file, blocks_before * BLOCK_BYTES - 100)
    if is_uploaded:
        await volume.upload()

    async def append(worked_s: float) -> None:
        size_bytes = fs.getattr(file).size_bytes
        assert size_bytes < 9 * BLOCK_BYTES, "the copy does not end while the file grows"
        await fs.write(file, size_bytes, b"x" * (BLOCK_BYTES - size_bytes % BLOCK_BYTES))
        await fs.write(file, fs.getattr(file).size_bytes, b"y" * (BLOCK_BYTES - 7))
        await yield_to_tasks(worked_s)

    monkeypatch.setattr("s3fs_meta.fs.trees.clone.yield_to_tasks", append)
    await clone(fs, b"file")

    content = await fs.read(file, 0, 10 * MIB)
    copy = await fs.read(look(fs, b"copy").ino, 0, 10 * MIB)
    assert copy.startswith(before)
    assert content.startswith(copy)
    assert_sound(fs)


async def test_copy_of_a_file_needs_cache_room_only_for_dirty_blocks(volume: Volume) -> None:
    """The copy shares the uploaded blocks of the file."""
    async with volume.mounted(cache_bytes=4 * BLOCK_BYTES) as fs:
        uploaded, dirty = make_file(fs, b"uploaded"), make_file(fs, b"dirty")
        wanted = await fill(fs, uploaded, 3 * BLOCK_BYTES)
        await volume.upload()
        content = await fill(fs, dirty, 2 * BLOCK_BYTES)

        await clone(fs, b"dirty")
        assert await whole(fs, look(fs, b"copy").ino) == content
        assert not volume.session.cache.has_room(1)
        other = CloneTarget(ROOT_INO, b"other")
        await clone(fs, b"uploaded", other)
        assert fs.getattr(look(fs, b"other").ino).mapped_blocks == 3
        assert_sound(fs)
        await volume.upload()
        assert await whole(fs, look(fs, b"other").ino) == wanted


async def test_copy_that_waits_for_cache_room_shares_blocks_that_are_uploaded_meanwhile(
    volume: Volume,
) -> None:
    """In a full cache, a dirty block is copied after other blocks were uploaded, or is shared."""
    async with volume.mounted(cache_bytes=3 * BLOCK_BYTES) as fs:
        content = await fill(fs, make_file(fs, b"file"), 3 * BLOCK_BYTES)
        before = fs.db.counters.block_bytes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(clone, fs, b"file")
            await until(lambda: volume.session.cache.writers.count == 1)
            await volume.upload()

        assert await whole(fs, look(fs, b"copy").ino) == content
        assert fs.db.counters.block_bytes == before
        assert_sound(fs)


async def test_copied_tree_counts_against_the_capacity(fs: Filesystem) -> None:
    """A copy that exceeds the capacity fails and is removed."""
    await make_tree(fs)
    fs.set_capacity(fs.db.counters.block_bytes + 7)
    with pytest.raises(NoSpaceLeftError):
        await clone(fs)
    await settled(fs)
    assert fs.lookup(*COPY) is None
    assert_sound(fs)


@pytest.mark.parametrize("where", ["file", "tree"])
@pytest.mark.parametrize("error", [NoSpaceLeftError, LostBlockError])
async def test_copy_that_fails_between_two_dirty_blocks_leaves_no_block(
    fs: Filesystem, volume: Volume, where: str, error: type[S3fsError]
) -> None:
    """A copy that fails after the first blocks of a file is removed with these blocks."""
    parent = ROOT_INO if where == "file" else make_directory(fs, b"tree")
    file = make_file(fs, b"file", parent)
    for index in range(4):
        await fs.write(file, index * BLOCK_BYTES, b"%d" % index * BLOCK_BYTES)
    before = fs.db.counters.block_bytes
    if error is NoSpaceLeftError:
        fs.set_capacity(before + 2 * BLOCK_BYTES)
    else:
        volume.session.files.remove(cached_blocks.in_state(volume.session.db, BlockState.DIRTY)[2])

    with pytest.raises(error):
        await clone(fs, where.encode())
    await settled(fs)
    assert fs.lookup(*COPY) is None
    assert fs.db.counters.block_bytes == before
    assert_sound(fs)


async def test_single_file_symlink_or_directory_can_be_copied(fs: Filesystem) -> None:
    file = make_file(fs, b"file")
    await fs.write(file, 0, b"a")
    fs.xattrs.set(file, b"user.a", b"1", ROOT)
    fs.namespace.make_symlink(ROOT_INO, b"link", b"target", USER)
    make_directory(fs, b"directory")
    for name in (b"file", b"link", b"directory"):
        await clone(fs, name, CloneTarget(ROOT_INO, name + b" again"))
        assert await facts(fs, look(fs, name + b" again").ino) == await facts(
            fs, look(fs, name).ino
        )
    assert_sound(fs)


async def test_tree_can_be_copied_into_itself(fs: Filesystem) -> None:
    """The copy of a tree into itself does not contain the copy."""
    top = await make_tree(fs)
    wanted = set(await facts(fs, top))
    await clone(fs, target=CloneTarget(top, b"copy"))
    assert set(await facts(fs, look(fs, b"copy", top).ino)) == wanted
    assert_sound(fs)


@pytest.mark.parametrize("names", [1, 2])
async def test_tree_whose_directories_form_a_cycle_is_not_copied(
    fs: Filesystem, names: int
) -> None:
    """A cycle of directories in damaged rows raises an error instead of an endless copy."""
    top = make_directory(fs, b"tree")
    below = make_directory(fs, b"below", top)
    for number in range(names):
        make_directory(fs, b"again %d" % number, below)
    fs.db.begin()
    fs.db.run("UPDATE dentries SET ino = ? WHERE parent = ?", (top, below))
    with trio.fail_after(WAIT_S_MAX), pytest.raises(MetadataError, match="cycle"):
        await clone(fs)
    assert fs.lookup(ROOT_INO, b"copy") is None


async def test_tree_copy_refuses_an_existing_target_and_a_missing_source(fs: Filesystem) -> None:
    """A copy to an existing name fails, even if the name was created during the copy."""
    top = await make_tree(fs)
    with pytest.raises(EntryExistsError):
        await clone(fs, target=CloneTarget(ROOT_INO, b"tree"))
    with pytest.raises(NoEntryError):
        await fs.tree_clone.clone(CloneTarget(ROOT_INO, b"tree"), Ino(top + 1), COPY, ignore)
    before = fs.db.counters.inodes

    def take(_progress: TreeProgress) -> None:
        if fs.lookup(*COPY) is None:
            make_file(fs, b"copy")

    with pytest.raises(EntryExistsError):
        await fs.tree_clone.clone(CloneTarget(ROOT_INO, b"tree"), top, COPY, take)
    await settled(fs)
    assert fs.db.counters.inodes == before + 1
    assert_sound(fs)


async def test_next_mount_removes_an_unfinished_copy(volume: Volume) -> None:
    """A daemon that is killed during a copy leaves nameless inodes, which the next mount purges."""

    class Killed(BaseException):
        """An exception that simulates that the daemon is killed."""

    async with volume.mounted(slices=Slices(cloned_names=2)) as fs:
        await _make_linked_tree(fs)
        inodes_before = fs.db.counters.inodes

        def kill(progress: TreeProgress) -> None:
            if progress.done > 6:
                volume.session.status.enter(MountState.DEGRADED, "so that no task tidies")
                raise Killed

        with pytest.raises(Killed):
            await fs.tree_clone.clone(
                CloneTarget(ROOT_INO, b"tree"), look(fs, b"tree").ino, COPY, kill
            )

    async with volume.mounted() as fs:
        assert fs.lookup(*COPY) is None
        assert fs.db.counters.inodes > inodes_before
        assert_sound(fs)
        fs.adopt_orphans()
        await settled(fs)
        assert fs.db.counters.inodes == inodes_before
        assert_sound(fs)


@sliced(cloned_names=2)
async def test_tree_copy_waits_for_database_checkpoints(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each slice the copy waits for a checkpoint, which limits the size of the WAL."""
    monkeypatch.setattr("s3fs_meta.fs.trees.remove.TREE_WAL_BYTES_MAX", 0)
    monkeypatch.setattr("s3fs_meta.fs.trees.remove.TREE_PAUSE_S", 0.001)
    top = await make_tree(fs)
    slices: list[TreeProgress] = []
    place = CloneTarget(ROOT_INO, b"tree")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fs.tree_clone.clone, place, top, COPY, slices.append)
        with trio.fail_after(WAIT_S_MAX):
            while fs.lookup(*COPY) is None:
                count = len(_copied_counts(slices))
                await trio.sleep(0.01)
                # At most one slice of the copy runs before each checkpoint.
                # A second slice can run before a checkpoint if the WAL was restarted.
                # A restarted WAL is regarded as checkpointed until the next commit.
                assert len(_copied_counts(slices)) <= count + 2
                fs.db.checkpoint()
    assert len(_copied_counts(slices)) > 2
    assert_sound(fs)


def _copied_counts(slices: list[TreeProgress]) -> set[int]:
    """Return the different totals of copied names that the slices reported."""
    return {each.done for each in slices}


async def test_cancelled_tree_copy_is_removed(fs: Filesystem) -> None:
    """A cancelled copy leaves no name and no inode."""
    top = await _make_linked_tree(fs)
    before = fs.db.counters.inodes
    with trio.CancelScope() as scope:

        def cancel(_progress: TreeProgress) -> None:
            scope.cancel()

        await fs.tree_clone.clone(CloneTarget(ROOT_INO, b"tree"), top, COPY, cancel)
    assert scope.cancelled_caught
    assert fs.lookup(*COPY) is None
    await settled(fs)
    assert fs.db.counters.inodes == before
    assert_sound(fs)


async def test_tree_copy_fails_if_its_source_is_removed(fs: Filesystem) -> None:
    """If the source of a copy is removed, the copy fails and is removed."""
    top = await make_tree(fs)

    def remove(_progress: TreeProgress) -> None:
        if fs.lookup(ROOT_INO, b"tree") is not None:
            fs.tree_removal.remove(ROOT_INO, b"tree", top)

    with pytest.raises(NoEntryError):
        await fs.tree_clone.clone(CloneTarget(ROOT_INO, b"tree"), top, COPY, remove)
    await settled(fs)
    assert fs.db.counters.inodes == 1
    assert_sound(fs)


async def test_tree_with_a_lost_block_is_not_copied(fs: Filesystem, volume: Volume) -> None:
    top = await make_tree(fs)
    volume.session.files.remove(cached_blocks.in_state(volume.session.db, BlockState.DIRTY)[0])
    with pytest.raises(LostBlockError):
        await clone(fs)
    await settled(fs)
    assert fs.lookup(*COPY) is None
    assert exists(fs, top)


async def test_slice_of_a_tree_copy_that_fails_in_the_middle_is_undone(fs: Filesystem) -> None:
    """A leftover row makes a copy fail in the middle of a slice. Other changes stay."""
    await make_tree(fs)
    first = fs.db.counters.next_ino
    fs.db.begin()
    for number in range(first, first + 30):
        fs.db.run("INSERT INTO symlinks VALUES (?, 'x')", (number,))
    fs.db.commit()
    make_file(fs, b"created before")
    with pytest.raises(DatabaseError):
        await clone(fs)

    fs.db.begin()
    fs.db.run("DELETE FROM symlinks WHERE ino >= ?", (first,))
    make_file(fs, b"created afterwards")
    fs.db.commit()
    await settled(fs)
    assert fs.lookup(*COPY) is None
    assert fs.lookup(ROOT_INO, b"created before") is not None
    assert_sound(fs)


async def test_copy_that_fails_while_it_gets_its_name_is_undone(fs: Filesystem) -> None:
    """A failed copy is deleted, so its name must not remain."""
    await make_tree(fs)
    fs.db.commit()
    fs.db.connection.execute(
        "CREATE TEMP TRIGGER failing BEFORE UPDATE ON inodes WHEN OLD.nlink = 0 AND NEW.nlink > 0"
        " BEGIN SELECT RAISE(ABORT, 'a test'); END"
    )

    with pytest.raises(DatabaseError):
        await clone(fs)

    fs.db.commit()
    fs.db.connection.execute("DROP TRIGGER failing")
    assert fs.lookup(*COPY) is None
    await settled(fs)
    assert_sound(fs)


async def test_tree_copy_is_refused_on_a_degraded_mount(fs: Filesystem) -> None:
    await make_tree(fs)
    fs.status.enter(MountState.DEGRADED, "a test")
    with pytest.raises(ReadOnlyStateError):
        await clone(fs)
    assert inodes.orphans(fs.db) == []


async def test_sparse_files_may_have_a_total_size_above_the_largest_integer(
    fs: Filesystem, volume: Volume
) -> None:
    """Files of 1 EiB can be created, copied, counted, checked and removed.

    SQLite stores integers below 2**63, so the sizes of eight such files exceed the range of one
    column.
    """
    top = make_directory(fs, b"tree")
    for number in range(9):
        await fs.data.truncate(make_file(fs, b"%d" % number, top), FILE_BYTES_MAX)
    await clone(fs)
    volume.commit()
    assert fs.db.counters.file_bytes == 18 * FILE_BYTES_MAX % (1 << 64)
    assert_sound(fs)

    fs.tree_removal.remove(ROOT_INO, b"copy", look(fs, b"copy").ino)
    await settled(fs)
    volume.commit()
    fs.db.load_counters()

    assert fs.db.counters.file_bytes == 9 * FILE_BYTES_MAX
    assert_sound(fs)
    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    await settled(fs)
    volume.commit()
    assert fs.db.counters.file_bytes == 0
