"""Tests of locked trees, which cannot change until they are removed completely."""

from collections.abc import Awaitable, Callable

import pytest

from s3fs_meta.errors import NoEntryError, NotPermittedError
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.namespace import RENAME_EXCHANGE
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.model import ROOT_INO, AccessTime, Ino, InodeFlag
from s3fs_meta.options.settings import FilesystemOptions
from tests.fs.conftest import ROOT, USER, Volume, exists, look, make_directory, make_file, sliced
from tests.fs.trees.samples import assert_sound, facts, make_tree, settled


async def _lock(fs: Filesystem, name: bytes = b"tree", parent: Ino = ROOT_INO) -> int:
    return await fs.tree_lock.lock(parent, name, look(fs, name, parent).ino)


def _refused(fs: Filesystem, top: Ino) -> list[Callable[[], object]]:
    """Return operations that would change a locked tree and never wait for the store."""
    below = look(fs, b"below", top).ino
    file = look(fs, b"full 0", top).ino
    other = look(fs, b"other").ino
    names = fs.namespace
    return [
        lambda: make_file(fs, b"new", below),
        lambda: make_directory(fs, b"new", top),
        lambda: names.make_symlink(below, b"new", b"target", USER),
        lambda: names.link(other, below, b"new"),
        lambda: names.link(file, ROOT_INO, b"new"),
        lambda: names.unlink(top, b"full 0"),
        lambda: names.remove_directory(below, b"empty"),
        lambda: names.rename(top, b"full 0", top, b"new"),
        lambda: names.rename(top, b"full 0", ROOT_INO, b"new"),
        lambda: names.rename(ROOT_INO, b"other", below, b"new"),
        lambda: names.rename(ROOT_INO, b"other", top, b"full 0"),
        lambda: names.rename(ROOT_INO, b"other", top, b"full 0", RENAME_EXCHANGE),
        lambda: names.rename(ROOT_INO, b"tree", ROOT_INO, b"new"),
        lambda: fs.open(file, writes=True),
        lambda: fs.attributes.set_attributes(file, SetAttributes(mode=0o600)),
        lambda: fs.attributes.set_attributes(below, SetAttributes(mtime_ns=1)),
        lambda: fs.xattrs.set(file, b"user.new", b"1", ROOT),
        lambda: fs.xattrs.remove(below, b"user.b"),
        lambda: fs.tree_removal.remove(ROOT_INO, b"tree", top),
        lambda: fs.tree_removal.remove(top, b"full 0", file, locked=True),
    ]


def _refused_later(fs: Filesystem, top: Ino) -> list[Callable[[], Awaitable[object]]]:
    """Return operations that would change a locked tree and may wait for the store."""
    file = look(fs, b"full 0", top).ino
    return [
        lambda: fs.write(file, 0, b"a"),
        lambda: fs.data.truncate(file, 0),
        lambda: fs.setattr(file, SetAttributes(size_bytes=3), ROOT),
        lambda: fs.tree_clone.clone(
            CloneTarget(ROOT_INO, b"other"),
            look(fs, b"other").ino,
            CloneTarget(top, b"new"),
            lambda _: None,
        ),
    ]


async def test_locked_tree_cannot_be_changed(fs: Filesystem) -> None:
    """Changes of a locked tree are refused, even for root. Reads succeed."""
    top = await make_tree(fs)
    make_file(fs, b"other")
    wanted = await facts(fs, top)
    assert await _lock(fs) == len(wanted)

    for change in _refused(fs, top):
        with pytest.raises(NotPermittedError):
            change()
    for change_later in _refused_later(fs, top):
        with pytest.raises(NotPermittedError):
            await change_later()
    found = await facts(fs, top)
    assert [row[1:] for row in found.values()] == [row[1:] for row in wanted.values()]
    fs.open(look(fs, b"full 0", top).ino)
    fs.release(look(fs, b"full 0", top).ino)
    assert_sound(fs)


@sliced(names=3, directories=2)
async def test_locking_a_tree_in_small_slices_locks_every_entry(fs: Filesystem) -> None:
    """A tree is locked completely in small slices. Locking the tree again changes nothing."""
    top = await make_tree(fs, files=9)
    for number in range(3):
        make_file(fs, b"f", make_directory(fs, b"%d" % number, top))
    entries = len(await facts(fs, top))
    for _ in range(2):
        assert await _lock(fs) == entries
    sql = f"SELECT count(*) FROM inodes WHERE NOT flags & {InodeFlag.LOCKED:d}"
    assert fs.db.inodes.one(sql) == (1,)
    assert_sound(fs)


async def test_reading_a_locked_file_preserves_its_atime(volume: Volume) -> None:
    async with volume.mounted(FilesystemOptions(access_time=AccessTime.ALWAYS)) as fs:
        top = await make_tree(fs)
        await _lock(fs)
        file = look(fs, b"full 0", top)
        volume.clock.later()
        assert await fs.read(file.ino, 0, 99) == b"content"
        assert fs.getattr(file.ino) == file


async def test_directory_above_a_locked_tree_is_removed_only_with_option_locked(
    fs: Filesystem,
) -> None:
    """A directory above a locked tree is removed only with *locked*, even after a move."""
    above = make_directory(fs, b"above")
    home = make_directory(fs, b"home")
    make_directory(fs, b"kept", home)
    await _lock(fs, b"kept", home)
    fs.namespace.rename(ROOT_INO, b"home", above, b"home")

    for parent, name, ino in ((above, b"home", home), (ROOT_INO, b"above", above)):
        with pytest.raises(NotPermittedError, match="s3fs-meta rm --locked removes it"):
            fs.tree_removal.remove(parent, name, ino)
    fs.tree_removal.remove(ROOT_INO, b"above", above, locked=True)
    assert fs.lookup(ROOT_INO, b"above") is None


@pytest.mark.parametrize("what", ["tree", "file"])
@sliced(names=2, directories=2)
async def test_directory_with_another_name_of_a_locked_file_is_removed_only_with_option_locked(
    fs: Filesystem, what: str
) -> None:
    """A locked file also keeps its names outside of the locked tree."""
    top = make_directory(fs, b"tree")
    outside = make_directory(fs, b"outside")
    inner = make_directory(fs, b"inner", outside)
    files = [make_file(fs, b"%d" % number, top) for number in range(5)]
    for file in files:
        for link in range(3):
            fs.namespace.link(file, top, b"%d again %d" % (file, link))
    fs.namespace.link(files[4], inner, b"other")
    if what == "tree":
        assert await _lock(fs) == 21
    else:
        await _lock(fs, b"4", top)

    for parent, name, ino in ((ROOT_INO, b"outside", outside), (outside, b"inner", inner)):
        with pytest.raises(NotPermittedError):
            fs.tree_removal.remove(parent, name, ino)
    fs.tree_removal.remove(ROOT_INO, b"outside", outside, locked=True)
    await settled(fs)
    assert fs.getattr(files[4]).nlink == 4
    assert_sound(fs)


@sliced(names=3, directories=2)
async def test_files_with_more_names_than_a_slice_are_locked(fs: Filesystem) -> None:
    """A slice that stops after the names of one file does not skip the other files."""
    top = make_directory(fs, b"tree")
    for number in range(2):
        file = make_file(fs, b"%d" % number, top)
        for link in range(4):
            fs.namespace.link(file, ROOT_INO, b"%d again %d" % (number, link))
    assert await _lock(fs) == 3
    for number in range(2):
        with pytest.raises(NotPermittedError):
            fs.namespace.unlink(ROOT_INO, b"%d again 0" % number)
    assert_sound(fs)


@pytest.mark.parametrize("what", ["tree", "file", "empty"])
async def test_removal_of_a_locked_entry_deletes_all_its_rows(fs: Filesystem, what: str) -> None:
    """No row of a locked tree, file or directory remains after its removal with *locked*."""
    if what == "tree":
        await make_tree(fs)
    elif what == "file":
        make_file(fs, b"file")
    else:
        make_directory(fs, b"empty")
    name = what.encode()
    await _lock(fs, name)
    ino = look(fs, name).ino
    with pytest.raises(NotPermittedError):
        fs.tree_removal.remove(ROOT_INO, name, ino)
    fs.tree_removal.remove(ROOT_INO, name, ino, locked=True)
    await settled(fs)
    assert not exists(fs, ino)
    assert fs.db.counters.inodes == 1
    assert_sound(fs)


async def test_copy_of_a_locked_tree_can_be_changed(fs: Filesystem) -> None:
    await make_tree(fs)
    await _lock(fs)
    await fs.tree_clone.clone(
        CloneTarget(ROOT_INO, b"tree"),
        look(fs, b"tree").ino,
        CloneTarget(ROOT_INO, b"copy"),
        lambda _: None,
    )
    make_file(fs, b"new", look(fs, b"copy").ino)
    assert_sound(fs)


async def test_lock_is_refused_if_the_name_refers_to_another_inode(fs: Filesystem) -> None:
    """A lock fails if the name no longer refers to the inode that the caller has checked."""
    ino = make_file(fs, b"f")
    with pytest.raises(NoEntryError):
        await fs.tree_lock.lock(ROOT_INO, b"f", Ino(ino + 1))
    assert not look(fs, b"f").flags
