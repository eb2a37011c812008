"""Tests of the flags immutable and append-only: who may set them, and what they prevent."""

import struct
from collections.abc import Awaitable, Callable

import pytest

from s3fs_meta.errors import (
    InvalidRequestError,
    NoSpaceLeftError,
    NotPermittedError,
    NotSupportedError,
)
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.content.file_ranges import KEEP_SIZE, PUNCH_HOLE
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.flags.inode_flags import FS_APPEND_FL, FS_IMMUTABLE_FL, SET_EXTENDED, extended
from s3fs_meta.fs.namespace import RENAME_EXCHANGE
from s3fs_meta.model import ROOT_INO, Ino, InodeFlag
from tests.fs.conftest import ROOT, Volume, exists, look, make_directory, make_file
from tests.fs.trees.samples import assert_sound
from tests.polling import until
from tests.tasks import running

NODUMP = 0x40
BOTH = (FS_IMMUTABLE_FL, FS_APPEND_FL)


async def _with_flag(fs: Filesystem, flag: int) -> tuple[Ino, Ino]:
    """Create a non-empty file and a directory with one entry, and set a flag on the two."""
    file, directory = make_file(fs, b"file"), make_directory(fs, b"d")
    await fs.write(file, 0, b"content")
    make_file(fs, b"in", directory)
    make_file(fs, b"other")
    for ino in (file, directory):
        await fs.flags.set(ino, flag, is_root=True)
        assert fs.flags.get(ino) == flag
    return file, directory


def _refused(fs: Filesystem) -> list[Callable[[], object]]:
    """Return operations that a flagged inode refuses, and that never wait for the store."""
    file, directory, names = look(fs, b"file").ino, look(fs, b"d").ino, fs.namespace
    return [
        lambda: names.unlink(ROOT_INO, b"file"),
        lambda: names.link(file, ROOT_INO, b"new"),
        lambda: names.rename(ROOT_INO, b"file", ROOT_INO, b"new"),
        lambda: names.rename(ROOT_INO, b"other", ROOT_INO, b"file"),
        lambda: names.rename(ROOT_INO, b"other", ROOT_INO, b"file", RENAME_EXCHANGE),
        lambda: names.unlink(directory, b"in"),
        lambda: names.rename(directory, b"in", directory, b"new"),
        lambda: names.rename(directory, b"in", ROOT_INO, b"new"),
        lambda: names.rename(ROOT_INO, b"other", directory, b"in"),
        lambda: names.rename(ROOT_INO, b"other", directory, b"in", RENAME_EXCHANGE),
        lambda: names.rename(ROOT_INO, b"d", ROOT_INO, b"new"),
        lambda: fs.open(file, writes=True),
        lambda: fs.attributes.set_attributes(file, SetAttributes(mode=0o600)),
        lambda: fs.attributes.set_attributes(directory, SetAttributes(uid=5)),
        lambda: fs.xattrs.set(file, b"user.new", b"1", ROOT),
        lambda: fs.tree_removal.remove(ROOT_INO, b"d", directory),
        lambda: fs.tree_removal.remove(ROOT_INO, b"file", file),
        lambda: fs.tree_removal.remove(directory, b"in", look(fs, b"in", directory).ino),
    ]


def _refused_later(fs: Filesystem) -> list[Callable[[], Awaitable[object]]]:
    """Return operations that a flagged inode refuses, and that may wait for the store."""
    file = look(fs, b"file").ino
    return [
        lambda: fs.setattr(file, SetAttributes(size_bytes=3), ROOT),
        lambda: fs.ranges.allocate(file, PUNCH_HOLE | KEEP_SIZE, 0, 3),
    ]


@pytest.mark.parametrize("flag", BOTH)
async def test_immutable_and_append_only_inodes_refuse_changes_by_root(
    fs: Filesystem, flag: int
) -> None:
    """Even root cannot change a flagged inode before clearing the flag."""
    file, directory = await _with_flag(fs, flag)
    wanted = [fs.getattr(ino) for ino in (file, directory, ROOT_INO)]

    for change in _refused(fs):
        with pytest.raises(NotPermittedError):
            change()
    for change_later in _refused_later(fs):
        with pytest.raises(NotPermittedError):
            await change_later()
    assert [fs.getattr(ino) for ino in (file, directory, ROOT_INO)] == wanted
    assert_sound(fs)

    for ino in (file, directory):
        await fs.flags.set(ino, 0, is_root=True)
    fs.namespace.unlink(directory, b"in")
    fs.namespace.remove_directory(ROOT_INO, b"d")
    await fs.setattr(file, SetAttributes(size_bytes=3), ROOT)
    fs.namespace.unlink(ROOT_INO, b"file")


async def test_only_the_current_time_can_be_set_on_an_append_only_inode(fs: Filesystem) -> None:
    for ino in await _with_flag(fs, FS_APPEND_FL):
        before = fs.attributes.get(ino)
        now_ns = before.ctime_ns
        with pytest.raises(NotPermittedError):
            fs.attributes.set_attributes(ino, SetAttributes(atime_ns=0, mtime_ns=0))
        assert fs.attributes.get(ino) == before

        fs.attributes.set_attributes(ino, SetAttributes(atime_ns=now_ns, mtime_ns=now_ns))
        fs.attributes.set_attributes(ino, SetAttributes(mtime_ns=now_ns - 1, ctime_ns=now_ns - 1))

        assert fs.attributes.get(ino).mtime_ns == now_ns - 1
        await fs.flags.set(ino, FS_IMMUTABLE_FL, is_root=True)
        with pytest.raises(NotPermittedError):
            fs.attributes.set_attributes(ino, SetAttributes(atime_ns=now_ns))


async def test_append_only_inode_can_grow_but_immutable_inode_cannot(fs: Filesystem) -> None:
    """A program can append to an append-only file, and add names to an append-only directory."""
    file, directory = await _with_flag(fs, FS_APPEND_FL)
    fs.open(file, writes=True, appends=True)
    await fs.write(file, 7, b", more")
    fs.attributes.set_attributes(file, SetAttributes(mtime_ns=5, ctime_ns=5))
    fs.release(file)
    make_file(fs, b"new", directory)
    await fs.flags.set(file, FS_APPEND_FL | FS_IMMUTABLE_FL, is_root=True)
    await fs.flags.set(directory, FS_IMMUTABLE_FL, is_root=True)

    for refused in (
        lambda: fs.write(file, 0, b"a"),
        lambda: fs.ranges.allocate(file, KEEP_SIZE, 0, 3),
    ):
        with pytest.raises(NotPermittedError):
            await refused()
    with pytest.raises(NotPermittedError):
        fs.open(file, writes=True, appends=True)
    with pytest.raises(NotPermittedError):
        fs.attributes.set_attributes(file, SetAttributes(mtime_ns=7))
    with pytest.raises(NotPermittedError):
        make_file(fs, b"newer", directory)
    assert await fs.read(file, 0, 99) == b"content, more"


async def test_file_in_an_immutable_directory_can_be_written(fs: Filesystem) -> None:
    """The immutable flag of a directory protects the directory's names, not its files' content."""
    _file, directory = await _with_flag(fs, FS_IMMUTABLE_FL)
    ino = look(fs, b"in", directory).ino
    fs.open(ino, writes=True)
    await fs.write(ino, 0, b"new")
    assert await fs.read(ino, 0, 9) == b"new"


async def test_only_root_can_set_inode_flags_and_only_supported_flags(
    fs: Filesystem,
) -> None:
    """Only root may set the flags immutable and append-only; other flags are refused."""
    ino = make_file(fs, b"f")
    with pytest.raises(NotPermittedError):
        await fs.flags.set(ino, FS_APPEND_FL, is_root=False)
    with pytest.raises(NotSupportedError):
        await fs.flags.set(ino, FS_APPEND_FL | NODUMP, is_root=True)
    before = fs.getattr(ino)
    await fs.flags.set(ino, 0, is_root=False)
    assert fs.getattr(ino) == before


async def test_file_that_is_open_for_writing_can_become_immutable(fs: Filesystem) -> None:
    """A process that has opened a file for writing can write even after the file is immutable."""
    ino = make_file(fs, b"f")
    fs.open(ino, writes=True)
    await fs.write(ino, 0, b"before")
    await fs.flags.set(ino, FS_IMMUTABLE_FL, is_root=True)

    for refused in (
        lambda: fs.setattr(ino, SetAttributes(size_bytes=1), ROOT),
        lambda: fs.setattr(ino, SetAttributes(mode=0o777), ROOT),
        lambda: fs.ranges.allocate(ino, 0, 0, 100),
    ):
        with pytest.raises(NotPermittedError):
            await refused()
    with pytest.raises(NotPermittedError):
        fs.open(ino, writes=True)
    await fs.write(ino, 3, b"held by the kernel")
    fs.attributes.set_attributes(ino, SetAttributes(mtime_ns=5, ctime_ns=6))
    assert await fs.read(ino, 0, 99) == b"befheld by the kernel"
    fs.release(ino)

    with pytest.raises(NotPermittedError):
        await fs.write(ino, 0, b"x")
    with pytest.raises(NotPermittedError):
        fs.attributes.set_attributes(ino, SetAttributes(mtime_ns=7))


async def test_immutable_flag_immediately_protects_a_file_open_for_reading(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    fs.open(ino)
    await fs.flags.set(ino, FS_IMMUTABLE_FL, is_root=True)
    with pytest.raises(NotPermittedError):
        await fs.write(ino, 0, b"x")
    await fs.flags.set(ino, 0, is_root=True)
    await fs.write(ino, 0, b"x")
    fs.release(ino)


async def test_locked_inode_is_shown_as_immutable(fs: Filesystem) -> None:
    """A lock by ``s3fs-meta lock`` is reported as immutable, and chattr(1) cannot remove it."""
    ino = make_file(fs, b"f")
    await fs.tree_lock.lock(ROOT_INO, b"f", ino)
    assert fs.flags.get(ino) == FS_IMMUTABLE_FL
    for wanted in (0, FS_APPEND_FL):
        with pytest.raises(NotPermittedError):
            await fs.flags.set(ino, wanted, is_root=True)


async def test_tree_with_an_immutable_file_can_be_removed_only_with_option_locked(
    fs: Filesystem,
) -> None:
    """A directory with an immutable file is removed only with the argument *locked*."""
    above, other = make_directory(fs, b"above"), make_directory(fs, b"other")
    ino = make_file(fs, b"f", make_directory(fs, b"d", above))
    fs.namespace.link(ino, other, b"g")
    await fs.flags.set(ino, FS_IMMUTABLE_FL, is_root=True)
    for name, directory in ((b"above", above), (b"other", other)):
        with pytest.raises(NotPermittedError):
            fs.tree_removal.remove(ROOT_INO, name, directory)

    for name, directory in ((b"above", above), (b"other", other)):
        fs.tree_removal.remove(ROOT_INO, name, directory, locked=True)
    async with running(fs.tree_removal.run):
        await until(lambda: not (exists(fs, ino) or exists(fs, above)))
    assert_sound(fs)


async def test_one_of_two_names_of_an_immutable_file_can_be_removed_with_option_locked(
    fs: Filesystem,
) -> None:
    ino = make_file(fs, b"f")
    fs.namespace.link(ino, ROOT_INO, b"g")
    await fs.flags.set(ino, FS_IMMUTABLE_FL, is_root=True)
    fs.tree_removal.remove(ROOT_INO, b"f", ino, locked=True)
    assert fs.lookup(ROOT_INO, b"f") is None
    assert fs.flags.get(ino) == FS_IMMUTABLE_FL
    assert_sound(fs)


@pytest.mark.parametrize("name", [b"file", b"d"])
async def test_failed_removal_preserves_the_inode_flags(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    """If a removal with *locked* fails on a full disk, the inode keeps its flags."""
    for ino in await _with_flag(fs, FS_IMMUTABLE_FL):
        before = fs.getattr(ino)
        monkeypatch.setattr(fs.changes, "begin_removal", _refuse)
        if look(fs, name).ino == ino:
            with pytest.raises(NoSpaceLeftError):
                fs.tree_removal.remove(ROOT_INO, name, ino, locked=True)
        assert fs.getattr(ino) == before


def _refuse(_parent: Ino, _name: bytes) -> None:
    raise NoSpaceLeftError("the disk is full")


async def test_copy_into_an_append_only_file_must_start_at_its_end(fs: Filesystem) -> None:
    file, _directory = await _with_flag(fs, FS_APPEND_FL)
    other = look(fs, b"other").ino
    await fs.write(other, 0, b"new")
    with pytest.raises(NotPermittedError):
        await fs.ranges.copy(other, 0, file, 6, 3)
    assert await fs.ranges.copy(other, 0, file, 7, 3) == 3
    assert await fs.read(file, 0, 99) == b"contentnew"


async def test_inode_flags_survive_a_remount(volume: Volume) -> None:
    async with volume.mounted() as fs:
        await fs.flags.set(make_file(fs, b"f"), FS_APPEND_FL, is_root=True)
        volume.commit()
    async with volume.mounted() as fs:
        assert look(fs, b"f").flags == InodeFlag.APPEND_ONLY


def test_inode_flags_are_converted_to_struct_fsxattr_and_back() -> None:
    """The chattr(1) flags correspond to the flags in struct fsxattr (linux/fs.h)."""
    assert [extended(flags) for flags in (0, *BOTH, sum(BOTH))] == [0, 0x08, 0x10, 0x18]


async def test_extended_ioctl_sets_inode_flags(fs: Filesystem) -> None:
    """FS_IOC_FSSETXATTR, which xfs_io(8) uses, sets flags. All its other fields must be zero."""
    ino = make_file(fs, b"f")
    for flags in (sum(BOTH), 0):
        given = struct.pack("=I24x", extended(flags))
        assert await fs.flags.command(ino, SET_EXTENDED, given, is_root=True) == b""
        assert fs.flags.get(ino) == flags
    for given in (struct.pack("=I24x", 0x02), struct.pack("=II20x", 0, 4096)):
        with pytest.raises(NotSupportedError):
            await fs.flags.command(ino, SET_EXTENDED, given, is_root=True)
    with pytest.raises(InvalidRequestError):
        await fs.flags.command(ino, SET_EXTENDED, given[:4], is_root=True)
    with pytest.raises(NotPermittedError):
        await fs.flags.command(ino, SET_EXTENDED, struct.pack("=I24x", 8), is_root=False)
