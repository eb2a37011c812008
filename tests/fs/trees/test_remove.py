"""Tests of tree removals: names disappear immediately, and a background task frees the space."""

import pytest
import trio
import trio.testing

from s3fs_meta.background_task import lacks_thread
from s3fs_meta.errors import NoEntryError, NotPermittedError, ReadOnlyStateError
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.slices import Slices
from s3fs_meta.fs.write_gate import Invalidations, KernelNotices
from s3fs_meta.meta.tables import block_map, blocks, cached_blocks, damage_marks, inodes
from s3fs_meta.meta.tables.damage_marks import Mark
from s3fs_meta.model import ROOT_INO, BlockIndex, BlockState, Ino, InodeFlag
from s3fs_meta.mount_state import MountState
from tests.fs.conftest import (
    BLOCK_BYTES,
    USER,
    Volume,
    exists,
    look,
    make_directory,
    make_file,
    sliced,
)
from tests.fs.trees.samples import make_tree, settled
from tests.polling import until
from tests.tasks import running

_TABLES = ("inodes", "dentries", "hard_links", "symlinks", "xattrs", "block_map", "blocks")


def _rows(fs: Filesystem) -> dict[str, int]:
    found = {}
    for table in _TABLES:
        row = fs.db.inodes.one(f"SELECT count(*) FROM {table}")
        assert row is not None
        found[table] = row[0]
    return found


def _assert_counted(fs: Filesystem) -> None:
    """Require that the counters match a scan of the rows."""
    counters = fs.db.counters
    rows = _rows(fs)
    assert (counters.inodes, counters.dentries) == (rows["inodes"], rows["dentries"])
    sizes = "SELECT coalesce(sum(size_bytes), 0) FROM inodes WHERE (mode & 61440) = 32768"
    assert fs.db.inodes.one(sizes) == (counters.file_bytes,)
    assert fs.db.one("SELECT coalesce(sum(plain_bytes), 0) FROM blocks") == (counters.block_bytes,)


async def test_removing_a_tree_deletes_its_name_before_its_rows(fs: Filesystem) -> None:
    """The name disappears immediately. A background task deletes the rows and adjusts counters."""
    before = _rows(fs)
    top = await make_tree(fs)
    fs.tree_removal.remove(ROOT_INO, b"tree", top)

    assert fs.lookup(ROOT_INO, b"tree") is None
    assert fs.getattr(ROOT_INO).nlink == 2
    await settled(fs)

    assert _rows(fs) == before
    _assert_counted(fs)


@pytest.mark.parametrize("value", ["'text'", "CAST(x'ff00' AS TEXT)"])
@pytest.mark.parametrize(
    ("bad", "column"),
    [
        *((b"inner", column) for column in ("mode", "nlink", "size_bytes", "mapped_blocks")),
        *((b"file", column) for column in ("mode", "nlink", "mapped_blocks")),
    ],
)
async def test_unreadable_inode_row_in_a_removed_tree_stays_for_fsck(
    fs: Filesystem, column: str, bad: bytes, value: str
) -> None:
    """A row with a value of a wrong type neither ends the removal nor makes the mount read-only."""
    top = make_directory(fs, b"tree")
    inner = make_directory(fs, b"inner", top)
    inos = {b"inner": inner, b"file": make_file(fs, b"file", inner)}
    good = make_file(fs, b"good", top)
    fs.db.inodes.run(f"UPDATE inodes SET {column} = {value} WHERE ino = ?", (inos[bad],))

    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    await settled(fs)

    assert fs.status.state is MountState.SERVING
    assert fs.db.inodes.all("SELECT ino FROM inodes WHERE ino IN (?, ?)", (top, good)) == []
    assert fs.db.inodes.one("SELECT 1 FROM inodes WHERE ino = ?", (inos[bad],)) == (1,)


async def test_sealed_content_of_a_removed_tree_is_not_uploaded(
    fs: Filesystem, volume: Volume
) -> None:
    top = await make_tree(fs)
    fs.db.begin_local()
    volume.session.cache.seal(cached_blocks.in_state(fs.db, BlockState.DIRTY))
    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    await settled(fs)

    await volume.session.flush()

    assert not [key for key in volume.memory.objects if key.startswith("pack/")]


async def test_cached_last_copy_of_a_removed_tree_stays_until_a_sync(
    fs: Filesystem, volume: Volume
) -> None:
    """A power cut may undo the removal, so the last copy of a block stays until the next sync."""
    top = make_directory(fs, b"tree")
    file = make_file(fs, b"file", top)
    await fs.write(file, 0, b"damaged in the bucket")
    await volume.upload()
    block = block_map.find(fs.db, file, BlockIndex(0))
    assert block is not None
    pack = blocks.get(fs.db, block).pack
    assert pack is not None
    fs.db.begin()
    damage_marks.add(fs.db, Mark(pack, None))
    fs.tree_removal.remove(ROOT_INO, b"tree", top)

    fs.tree_removal.remove_slice()

    assert blocks.find(fs.db, block) is None
    assert volume.session.files.read(block, 0, 7) == b"damaged"
    await volume.session.durability.sync_all()
    assert volume.session.files.size(block) is None


async def test_single_file_and_empty_directory_are_removed_immediately(fs: Filesystem) -> None:
    file, directory = make_file(fs, b"f"), make_directory(fs, b"d")
    fs.tree_removal.remove(ROOT_INO, b"f", file)
    fs.tree_removal.remove(ROOT_INO, b"d", directory)

    assert not exists(fs, file)
    assert not exists(fs, directory)


async def test_tree_removal_is_refused_if_the_name_refers_to_another_inode(fs: Filesystem) -> None:
    """A removal fails if the name no longer refers to the inode that the caller has checked."""
    top = await make_tree(fs)
    with pytest.raises(NoEntryError):
        fs.tree_removal.remove(ROOT_INO, b"tree", Ino(top + 1))
    with pytest.raises(NoEntryError):
        fs.tree_removal.remove(ROOT_INO, b"none", top)
    assert look(fs, b"tree").ino == top


async def test_removed_tree_cannot_be_changed(fs: Filesystem) -> None:
    """The top directory and its subdirectories refuse changes before their rows are deleted."""
    top = await make_tree(fs)
    below = look(fs, b"below", top).ino
    other = make_file(fs, b"other")
    fs.tree_removal.remove(ROOT_INO, b"tree", top)

    for directory in (top, below):
        with pytest.raises(NoEntryError):
            make_file(fs, b"new", directory)
        with pytest.raises(NoEntryError):
            make_directory(fs, b"new", directory)
        with pytest.raises(NoEntryError):
            fs.namespace.link(other, directory, b"new")
        with pytest.raises(NoEntryError):
            fs.namespace.rename(ROOT_INO, b"other", directory, b"new")
        with pytest.raises(NotPermittedError):
            fs.namespace.make_nameless(directory, 0o666, USER)
    with pytest.raises(NoEntryError):
        fs.namespace.rename(below, b"plain 0", ROOT_INO, b"saved")
    with pytest.raises(NoEntryError):
        fs.namespace.unlink(below, b"plain 0")
    with pytest.raises(NoEntryError):
        fs.namespace.remove_directory(below, b"empty")
    make_file(fs, b"elsewhere")


async def test_tree_removal_updates_link_counts_of_files_with_other_names(fs: Filesystem) -> None:
    """Files with additional names outside a removed tree keep a correct link count."""
    top = await make_tree(fs)
    below = look(fs, b"below", top).ino
    outside = make_directory(fs, b"outside")
    single, double, inside = (make_file(fs, name, top) for name in (b"1", b"2", b"3"))
    fs.namespace.link(single, outside, b"1")
    for directory, name in ((outside, b"2"), (ROOT_INO, b"2"), (below, b"2"), (top, b"2 again")):
        fs.namespace.link(double, directory, name)
    fs.namespace.link(inside, below, b"3")
    fs.namespace.link(inside, below, b"3 again")
    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    await settled(fs)

    assert not exists(fs, inside)
    assert (fs.getattr(single).nlink, fs.getattr(single).parent) == (1, outside)
    assert fs.getattr(double).nlink == 2
    assert fs.getattr(double).parent in {ROOT_INO, outside}
    rows = fs.db.all("SELECT parent, names FROM hard_links ORDER BY parent")
    assert rows == [(ROOT_INO, 1), (outside, 1)]
    _assert_counted(fs)


@sliced(names=3, directories=2, purged_blocks=2)
async def test_tree_removal_in_small_slices_keeps_counters_correct(fs: Filesystem) -> None:
    """Counters and directory sizes are correct after every slice of a removal."""
    before = _rows(fs)
    top = await make_tree(fs, files=20)
    linked = make_file(fs, b"0", top)
    for number in range(1, 10):
        fs.namespace.link(linked, top, b"%d" % number)
    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    while len(fs.orphans.trees):
        fs.tree_removal.remove_slice()
        wrong = fs.db.inodes.all(
            "SELECT ino FROM inodes WHERE (mode & 61440) = 16384 AND size_bytes <>"
            " (SELECT count(*) FROM dentries WHERE parent = inodes.ino)"
        )
        assert not wrong
        _assert_counted(fs)

    async with running(fs.run):
        await trio.testing.wait_all_tasks_blocked()
    assert _rows(fs) == before


async def test_open_inodes_of_a_removed_tree_are_kept_until_their_release(fs: Filesystem) -> None:
    """Inodes of a removed tree are deleted when the kernel releases and forgets them."""
    top = await make_tree(fs)
    below = look(fs, b"below", top).ino
    full = look(fs, b"full 0", top).ino
    plain = look(fs, b"plain 1", below).ino
    for ino in (below, full, plain):
        fs.lookups.add(ino)
    fs.open(full)
    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    await settled(fs)

    assert _rows(fs)["inodes"] == 4
    for ino in (below, full, plain):
        assert fs.getattr(ino).nlink == 0
    assert await fs.read(full, 0, 99) == b"content"
    await fs.write(full, 7, b" more")
    fs.release(full)
    for ino in (below, full, plain):
        fs.forget(ino, 1)
        assert not exists(fs, ino)
    assert _rows(fs)["xattrs"] == 0
    _assert_counted(fs)


async def test_kernel_drops_the_cached_names_of_a_removed_tree(volume: Volume) -> None:
    """The kernel drops from its caches all names in a removed tree, and changed link counts."""
    reported: list[Invalidations] = []
    forgotten: list[tuple[Ino, bytes]] = []

    async def forget(parent: Ino, name: bytes) -> None:
        assert forgotten or exists(fs, top), (
            "the first name must be forgotten before any row is removed"
        )
        await trio.lowlevel.checkpoint()
        forgotten.append((parent, name))

    async with volume.mounted(notices=KernelNotices(reported.append, forget)) as fs:
        top = await make_tree(fs)
        file = make_file(fs, b"f", top)
        fs.namespace.link(file, ROOT_INO, b"survivor")
        fs.lookups.add(file)
        done = fs.tree_removal.remove(ROOT_INO, b"tree", top)
        await settled(fs)

    assert reported == [
        Invalidations([], [top]),
        Invalidations([], [ROOT_INO]),
        Invalidations([], [file]),
    ]
    assert forgotten == [(ROOT_INO, b"tree"), (top, b"f")]
    assert done.is_set()


async def test_next_mount_resumes_an_interrupted_tree_removal(volume: Volume) -> None:
    async with volume.mounted(slices=Slices(names=2)) as fs:
        before = _rows(fs)
        top = await make_tree(fs, files=9)
        fs.tree_removal.remove(ROOT_INO, b"tree", top)
        for _ in range(4):
            fs.tree_removal.remove_slice()

    async with volume.mounted() as fs:
        assert _rows(fs)["inodes"] > 5
        fs.adopt_orphans()
        assert len(fs.orphans.trees)
        await settled(fs)
        assert _rows(fs) == before
        _assert_counted(fs)


async def test_tree_is_kept_if_the_commit_group_that_removes_it_is_rolled_back(
    fs: Filesystem, volume: Volume
) -> None:
    """After the rollback of a removal, the mount is read-only and the tree is complete."""
    top = await make_tree(fs)
    volume.commit()
    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    fs.db.rollback()

    assert fs.status.state is MountState.DEGRADED
    assert look(fs, b"tree").ino == top
    assert not look(fs, b"tree").flags & InodeFlag.REMOVED
    assert not fs.orphans.trees.hold(top)


@sliced(purged_blocks=2)
async def test_large_file_of_a_removed_tree_is_purged_in_several_steps(fs: Filesystem) -> None:
    """A large file in a removed tree is purged in steps, like any orphan."""
    top = make_directory(fs, b"tree")
    large = make_file(fs, b"large", top)
    for index in range(7):
        await fs.write(large, index * BLOCK_BYTES, b"a")
    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    fs.tree_removal.remove_slice()
    assert inodes.orphans(fs.db) == [large]
    async with running(fs.run):
        await until(lambda: not exists(fs, large))
    assert _rows(fs)["blocks"] == 0


async def test_tree_removal_is_refused_on_a_degraded_mount(fs: Filesystem) -> None:
    """A degraded mount also does not continue an earlier removal."""
    top, other = await make_tree(fs), await make_tree(fs, b"other")
    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    fs.status.enter(MountState.DEGRADED, "a test")

    with pytest.raises(ReadOnlyStateError, match="a test"):
        fs.tree_removal.remove(ROOT_INO, b"other", other)
    async with running(fs.tree_removal.run):
        await trio.testing.wait_all_tasks_blocked(0.01)

    assert look(fs, b"other").ino == other
    assert exists(fs, top)


async def test_restarted_task_deletes_the_trees_that_a_failed_task_has_left(volume: Volume) -> None:
    """The restarted task also makes the kernel drop the name that it had not dropped yet."""
    failures = [RuntimeError("can't start new thread")]

    async def forget(_parent: Ino, _name: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if failures:
            raise failures.pop()

    async with volume.mounted(notices=KernelNotices(lambda _changed: None, forget)) as fs:
        before = _rows(fs)
        top = make_directory(fs, b"tree")
        make_file(fs, b"file", top)
        done = fs.tree_removal.remove(ROOT_INO, b"tree", top)
        with pytest.raises(Exception) as failed:  # noqa: PT011 - an exception group of nurseries
            await fs.run()
        assert lacks_thread(failed.value)
        async with running(fs.run):
            await until(lambda: not len(fs.orphans.trees))

        assert done.is_set()
        assert _rows(fs) == before


async def test_tree_removed_while_the_kernel_forgets_another_is_deleted(volume: Volume) -> None:
    """Each removal must wake the deletion, also if the kernel is still dropping earlier names."""
    gate = trio.Event()

    async def forget(_parent: Ino, _name: bytes) -> None:
        await gate.wait()

    async with volume.mounted(notices=KernelNotices(lambda _changed: None, forget)) as fs:
        before = _rows(fs)
        for name in (b"1", b"2"):
            make_file(fs, b"file", make_directory(fs, name))
        async with running(fs.run):
            for name in (b"1", b"2"):
                fs.tree_removal.remove(ROOT_INO, name, look(fs, name).ino)
                await trio.testing.wait_all_tasks_blocked()
            gate.set()
            await until(lambda: not len(fs.orphans.trees))

        assert _rows(fs) == before
