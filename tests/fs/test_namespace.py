"""Tests of names, links and renames, as in POSIX."""

import stat

import pytest

from s3fs_meta.errors import (
    DirectoryInUseError,
    EntryExistsError,
    FsError,
    InvalidRequestError,
    NameTooLongError,
    NeedsDirectoryError,
    NoEntryError,
    NoInodeError,
    NotPermittedError,
    ReadOnlyStateError,
    RefusesDirectoryError,
)
from s3fs_meta.fs import acl
from s3fs_meta.fs.acl import GROUP_OBJ, MASK, OTHER, USER_OBJ, AclEntry
from s3fs_meta.fs.acl import USER as NAMED_USER
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.namespace import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT
from s3fs_meta.meta.tables import hard_links
from s3fs_meta.model import ROOT_INO, Ino
from s3fs_meta.mount_state import MountState
from tests.fs.conftest import ROOT, T0, USER, Volume, exists, look, make_directory, make_file
from tests.fs.trees.samples import assert_sound

LONG = b"n" * 255
DEFAULT_ACL = acl.encode(
    (
        AclEntry(USER_OBJ, 7),
        AclEntry(NAMED_USER, 7, 42),
        AclEntry(GROUP_OBJ, 5),
        AclEntry(MASK, 7),
        AclEntry(OTHER, 0),
    )
)


def names(fs: Filesystem, directory: Ino = ROOT_INO) -> set[bytes]:
    """Return all names in a directory."""
    return {name for name, _, _ in fs.read_directory(directory, 0, 1000)}  # type: ignore[arg-type]  # The cookie is 0.


# --- creating files and directories ------------------------------------------------------------


async def test_new_file_has_the_owner_of_its_creator(fs: Filesystem, volume: Volume) -> None:
    """Creation sets all attributes of the new file, and the size and times of its directory."""
    now_ns = volume.clock.later()
    made = fs.namespace.make_node(ROOT_INO, b"f", 0o100640, USER)

    assert look(fs, b"f") == made
    assert (made.uid, made.gid, made.mode, made.nlink) == (USER.uid, USER.gid, 0o100640, 1)
    assert {made.ctime_ns, made.mtime_ns, made.atime_ns} == {now_ns}
    root = fs.getattr(ROOT_INO)
    assert (root.size_bytes, root.nlink, root.mtime_ns, root.ctime_ns) == (1, 2, now_ns, now_ns)


async def test_new_directory_increments_the_link_count_of_its_parent(fs: Filesystem) -> None:
    """The link count of a directory is 2 plus the number of its subdirectories."""
    outer = make_directory(fs, b"d")
    inner = make_directory(fs, b"e", outer)
    assert (look(fs, b"d").nlink, fs.getattr(inner).nlink) == (3, 2)
    assert fs.getattr(ROOT_INO).nlink == 3
    assert fs.lookup(inner, b"..") == fs.getattr(outer)
    assert fs.lookup(inner, b".") == fs.getattr(inner)
    assert fs.lookup(ROOT_INO, b"..") == fs.getattr(ROOT_INO)


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR, stat.S_IFBLK])
async def test_special_file_stores_type_and_device(fs: Filesystem, kind: int) -> None:
    fs.namespace.make_node(ROOT_INO, b"s", kind | 0o600, ROOT, 0x801)
    assert (look(fs, b"s").mode, look(fs, b"s").rdev) == (kind | 0o600, 0x801)


async def test_symlink_stores_its_target(fs: Filesystem) -> None:
    """A symlink target has up to 4,095 arbitrary bytes. Its length is the size of the inode."""
    target = b"\xff/" * 2047 + b"x"
    made = fs.namespace.make_symlink(ROOT_INO, b"l", target, USER)
    assert (fs.readlink(made.ino), made.size_bytes, made.mode) == (target, 4095, 0o120777)
    with pytest.raises(NameTooLongError):
        fs.namespace.make_symlink(ROOT_INO, b"m", target + b"y", USER)
    with pytest.raises(NoEntryError):
        fs.namespace.make_symlink(ROOT_INO, b"m", b"", USER)


async def test_file_name_may_have_255_arbitrary_bytes(fs: Filesystem) -> None:
    """A name has up to 255 bytes, which need not be text."""
    make_file(fs, LONG)
    make_file(fs, bytes(range(128, 255)))
    assert names(fs) == {LONG, bytes(range(128, 255))}
    for refused in (LONG + b"n", LONG * 5):
        with pytest.raises(NameTooLongError):
            make_file(fs, refused)
        with pytest.raises(NameTooLongError):
            fs.lookup(ROOT_INO, refused)


@pytest.mark.parametrize("name", [b"", b".", b"..", b"/", b"a/b"])
async def test_reserved_names_cannot_be_created(fs: Filesystem, name: bytes) -> None:
    """A name that is empty, "." or "..", or that contains "/", is refused."""
    with pytest.raises(InvalidRequestError):
        make_file(fs, name)


async def test_refused_creation_changes_nothing(fs: Filesystem) -> None:
    """Creation fails if the name exists, or if the parent is missing or a file."""
    taken = make_file(fs, b"f")
    before = fs.statfs()
    for parent, error in ((ROOT_INO, EntryExistsError), (taken, NeedsDirectoryError)):
        with pytest.raises(error):
            make_file(fs, b"f", parent)
        with pytest.raises(error):
            make_directory(fs, b"f", parent)
    with pytest.raises(NoInodeError):
        make_file(fs, b"f", Ino(999))
    with pytest.raises(InvalidRequestError):
        fs.namespace.make_node(ROOT_INO, b"g", 0o040755, USER)
    assert fs.statfs() == before


async def test_new_entry_in_a_setgid_directory_inherits_the_group(fs: Filesystem) -> None:
    """New entries of a setgid directory inherit the group, and new directories the setgid bit."""
    made = fs.namespace.make_directory(ROOT_INO, b"d", 0o2775, ROOT)
    inner = fs.namespace.make_directory(made.ino, b"e", 0o755, USER)
    file = fs.namespace.make_node(inner.ino, b"f", 0o100644, USER)
    assert (inner.gid, inner.mode) == (ROOT.gid, 0o042755)
    assert (file.gid, file.mode) == (ROOT.gid, 0o100644)


async def test_default_acl_is_inherited(fs: Filesystem) -> None:
    """The default ACL, limited by the mode, becomes the ACL of a new file or directory.

    A new directory also inherits the default ACL itself.
    """
    directory = make_directory(fs, b"d")
    fs.xattrs.set(directory, acl.DEFAULT, DEFAULT_ACL, ROOT)
    file = fs.namespace.make_node(directory, b"f", 0o100640, USER)
    inner = fs.namespace.make_directory(directory, b"e", 0o755, USER)
    link = fs.namespace.make_symlink(directory, b"l", b"t", USER)

    assert file.mode == 0o100640
    assert [e.perm for e in acl.decode(fs.xattrs.get(file.ino, acl.ACCESS))] == [6, 7, 5, 4, 0]
    assert fs.xattrs.names(file.ino, ROOT) == [acl.ACCESS]
    assert fs.xattrs.get(inner.ino, acl.DEFAULT) == DEFAULT_ACL
    assert inner.mode == 0o040750
    assert fs.xattrs.names(link.ino, ROOT) == []
    assert fs.getattr(file.ino) == file


# --- links and removal -------------------------------------------------------------------------


async def test_hard_links_share_one_inode(fs: Filesystem, volume: Volume) -> None:
    """All names of an inode have the same attributes. The last unlink deletes the inode."""
    directory = make_directory(fs, b"d")
    ino = make_file(fs, b"a")
    now_ns = volume.clock.later()
    linked = fs.namespace.link(ino, directory, b"b")
    assert (linked.nlink, linked.ctime_ns, linked.mtime_ns) == (2, now_ns, T0)
    assert hard_links.parents(fs.db, ino) == [(ROOT_INO, 1), (directory, 1)]

    fs.namespace.unlink(ROOT_INO, b"a")
    assert (look(fs, b"b", directory).nlink, fs.getattr(ino).parent) == (1, directory)
    fs.namespace.unlink(directory, b"b")
    assert not exists(fs, ino)


async def test_invalid_hard_link_is_refused(fs: Filesystem) -> None:
    """A hard link is refused if the name exists, or if the inode is a directory or nameless."""
    directory, ino = make_directory(fs, b"d"), make_file(fs, b"a")
    with pytest.raises(NotPermittedError):
        fs.namespace.link(directory, ROOT_INO, b"x")
    with pytest.raises(EntryExistsError):
        fs.namespace.link(ino, ROOT_INO, b"d")
    fs.lookups.add(ino)
    fs.namespace.unlink(ROOT_INO, b"a")
    with pytest.raises(NoEntryError):
        fs.namespace.link(ino, ROOT_INO, b"x")


async def test_unlink_and_rmdir_refuse_inodes_of_the_wrong_type(fs: Filesystem) -> None:
    """Unlink refuses directories. Rmdir refuses files, and directories with entries."""
    directory = make_directory(fs, b"d")
    make_file(fs, b"f", directory)
    with pytest.raises(RefusesDirectoryError):
        fs.namespace.unlink(ROOT_INO, b"d")
    with pytest.raises(NeedsDirectoryError):
        fs.namespace.remove_directory(directory, b"f")
    with pytest.raises(DirectoryInUseError):
        fs.namespace.remove_directory(ROOT_INO, b"d")
    for missing in (fs.namespace.unlink, fs.namespace.remove_directory):
        with pytest.raises(NoEntryError):
            missing(ROOT_INO, b"x")


async def test_no_name_can_be_created_in_a_removed_open_directory(fs: Filesystem) -> None:
    """A removed open directory has link count 0. Creating a name fails with ENOENT."""
    ino = make_directory(fs, b"d")
    fs.lookups.add(ino)
    fs.namespace.remove_directory(ROOT_INO, b"d")
    assert (fs.getattr(ino).nlink, fs.getattr(ROOT_INO).nlink) == (0, 2)
    with pytest.raises(NoEntryError):
        make_file(fs, b"f", ino)
    with pytest.raises(NoEntryError):
        fs.namespace.rename(ROOT_INO, b"d", ino, b"x")
    with pytest.raises(NotPermittedError):
        fs.namespace.make_nameless(ino, 0o666, USER)
    fs.forget(ino, 1)
    assert not exists(fs, ino)


# --- rename of names ---------------------------------------------------------------------------


async def test_rename_moves_the_name_and_updates_times(fs: Filesystem, volume: Volume) -> None:
    """A rename sets the times of the two directories, and only the ctime of the renamed inode."""
    source, target = make_directory(fs, b"s"), make_directory(fs, b"t")
    ino = make_file(fs, b"a", source)
    now_ns = volume.clock.later()
    fs.namespace.rename(source, b"a", target, b"b")

    assert (names(fs, source), names(fs, target)) == (set(), {b"b"})
    moved = fs.getattr(ino)
    assert (moved.ctime_ns, moved.mtime_ns, moved.parent) == (now_ns, T0, target)
    for directory, size in ((source, 0), (target, 1)):
        row = fs.getattr(directory)
        assert (row.mtime_ns, row.ctime_ns, row.size_bytes) == (now_ns, now_ns, size)


async def test_rename_of_a_directory_updates_link_counts(fs: Filesystem) -> None:
    """After a move the two parents have new link counts, and ".." refers to the new parent."""
    source, target = make_directory(fs, b"s"), make_directory(fs, b"t")
    ino = make_directory(fs, b"d", source)
    fs.namespace.rename(source, b"d", target, b"d")
    assert (fs.getattr(source).nlink, fs.getattr(target).nlink) == (2, 3)
    assert fs.lookup(ino, b"..") == fs.getattr(target)


async def test_rename_replaces_a_file(fs: Filesystem) -> None:
    """A file that a rename replaces is kept while it is in use, and is then deleted."""
    old, new = make_file(fs, b"old"), make_file(fs, b"new")
    fs.lookups.add(new)
    fs.namespace.rename(ROOT_INO, b"old", ROOT_INO, b"new")
    assert (names(fs), look(fs, b"new").ino) == ({b"new"}, old)
    assert fs.getattr(ROOT_INO).size_bytes == 1
    assert fs.getattr(new).nlink == 0
    fs.forget(new, 1)
    assert not exists(fs, new)


async def test_rename_replaces_an_empty_directory(fs: Filesystem) -> None:
    source = make_directory(fs, b"s")
    moved, replaced = make_directory(fs, b"d", source), make_directory(fs, b"e")
    fs.namespace.rename(source, b"d", ROOT_INO, b"e")
    assert look(fs, b"e").ino == moved
    assert not exists(fs, replaced)
    assert (fs.getattr(ROOT_INO).nlink, fs.getattr(source).nlink) == (4, 2)
    fs.namespace.rename(ROOT_INO, b"e", ROOT_INO, b"f")
    assert fs.getattr(ROOT_INO).nlink == 4


async def test_rename_onto_a_hard_link_of_the_same_inode_does_nothing(fs: Filesystem) -> None:
    """A rename onto a hard link of the same file keeps the two names, as rename(2) requires."""
    ino = make_file(fs, b"a")
    fs.namespace.link(ino, ROOT_INO, b"b")
    fs.namespace.rename(ROOT_INO, b"a", ROOT_INO, b"b")
    assert (names(fs), fs.getattr(ino).nlink) == ({b"a", b"b"}, 2)
    fs.namespace.rename(ROOT_INO, b"a", ROOT_INO, b"a")
    assert names(fs) == {b"a", b"b"}


async def test_rename_exchange_swaps_two_names(fs: Filesystem, volume: Volume) -> None:
    """A directory and a file in different directories exchange their names."""
    source, target = make_directory(fs, b"s"), make_directory(fs, b"t")
    directory, file = make_directory(fs, b"d", source), make_file(fs, b"f", target)
    now_ns = volume.clock.later()
    fs.namespace.rename(source, b"d", target, b"f", RENAME_EXCHANGE)

    assert (look(fs, b"d", source).ino, look(fs, b"f", target).ino) == (file, directory)
    assert (fs.getattr(source).nlink, fs.getattr(target).nlink) == (2, 3)
    assert (fs.getattr(file).parent, fs.getattr(directory).parent) == (source, target)
    for ino in (source, target, directory, file):
        assert fs.getattr(ino).ctime_ns == now_ns
    fs.namespace.rename(ROOT_INO, b"s", ROOT_INO, b"t", RENAME_EXCHANGE)
    assert (look(fs, b"t").ino, fs.getattr(ROOT_INO).nlink) == (source, 4)


async def test_invalid_rename_is_refused(fs: Filesystem) -> None:
    """Renames that rename(2) and renameat2(2) forbid are refused and change nothing."""
    full, empty = make_directory(fs, b"full"), make_directory(fs, b"empty")
    deep = make_directory(fs, b"deep", full)
    make_file(fs, b"f")
    before = {ino: fs.getattr(ino) for ino in (ROOT_INO, full, empty, deep)}
    refused: list[tuple[type[FsError], tuple[Ino, bytes, Ino, bytes, int]]] = [
        (NoEntryError, (ROOT_INO, b"x", ROOT_INO, b"y", 0)),
        (NoEntryError, (ROOT_INO, b"f", ROOT_INO, b"y", RENAME_EXCHANGE)),
        (EntryExistsError, (ROOT_INO, b"f", ROOT_INO, b"full", RENAME_NOREPLACE)),
        (InvalidRequestError, (ROOT_INO, b"f", ROOT_INO, b"y", 3)),
        (InvalidRequestError, (ROOT_INO, b"f", ROOT_INO, b"y", 8)),
        (InvalidRequestError, (ROOT_INO, b"f", ROOT_INO, b"y", RENAME_WHITEOUT | RENAME_EXCHANGE)),
        (EntryExistsError, (ROOT_INO, b"f", ROOT_INO, b"full", RENAME_WHITEOUT | RENAME_NOREPLACE)),
        (NameTooLongError, (ROOT_INO, b"f", ROOT_INO, LONG + b"n", 0)),
        (InvalidRequestError, (ROOT_INO, b"full", deep, b"x", 0)),
        (InvalidRequestError, (ROOT_INO, b"full", full, b"x", 0)),
        (InvalidRequestError, (ROOT_INO, b"full", full, b"deep", RENAME_EXCHANGE)),
        (InvalidRequestError, (full, b"deep", ROOT_INO, b"full", RENAME_EXCHANGE)),
        (RefusesDirectoryError, (ROOT_INO, b"f", ROOT_INO, b"empty", 0)),
        (NeedsDirectoryError, (ROOT_INO, b"empty", ROOT_INO, b"f", 0)),
        (NeedsDirectoryError, (ROOT_INO, b"f", look(fs, b"f").ino, b"x", 0)),
        (DirectoryInUseError, (ROOT_INO, b"empty", ROOT_INO, b"full", 0)),
    ]
    for error, arguments in refused:
        with pytest.raises(error):
            fs.namespace.rename(*arguments)
    assert {ino: fs.getattr(ino) for ino in before} == before


async def test_rename_noreplace_succeeds_if_the_new_name_is_free(fs: Filesystem) -> None:
    make_file(fs, b"a")
    fs.namespace.rename(ROOT_INO, b"a", ROOT_INO, b"b", RENAME_NOREPLACE)
    assert names(fs) == {b"b"}


@pytest.mark.parametrize("flags", [RENAME_WHITEOUT, RENAME_WHITEOUT | RENAME_NOREPLACE])
async def test_rename_with_a_whiteout_creates_a_device_at_the_old_name(
    fs: Filesystem, volume: Volume, flags: int
) -> None:
    """A whiteout is the character device 0, 0, by which overlayfs hides a name."""
    source, target = make_directory(fs, b"s"), make_directory(fs, b"t")
    ino = make_file(fs, b"f", source)
    if not flags & RENAME_NOREPLACE:
        make_file(fs, b"g", target)
    volume.clock.later()
    fs.namespace.rename(source, b"f", target, b"g", flags, caller=USER)

    assert look(fs, b"g", target).ino == ino
    whiteout = look(fs, b"f", source)
    assert (whiteout.mode, whiteout.rdev, whiteout.nlink) == (stat.S_IFCHR, 0, 1)
    assert (whiteout.uid, whiteout.gid, whiteout.parent) == (USER.uid, USER.gid, source)
    assert (fs.getattr(source).size_bytes, fs.getattr(target).size_bytes) == (1, 1)
    assert_sound(fs)


async def test_whiteout_inherits_the_default_acl_of_its_directory(fs: Filesystem) -> None:
    """As on ext4 and tmpfs, the entries of owner, mask and others are limited by mode 0."""
    directory = make_directory(fs, b"d")
    make_file(fs, b"f", directory)
    fs.xattrs.set(directory, acl.DEFAULT, DEFAULT_ACL, ROOT)

    fs.namespace.rename(directory, b"f", ROOT_INO, b"g", RENAME_WHITEOUT, caller=USER)

    whiteout = look(fs, b"f", directory)
    assert whiteout.mode == stat.S_IFCHR
    assert [e.perm for e in acl.decode(fs.xattrs.get(whiteout.ino, acl.ACCESS))] == [0, 7, 5, 0, 0]
    assert_sound(fs)


async def test_whiteout_in_a_setgid_directory_inherits_the_group(fs: Filesystem) -> None:
    """Local filesystems also treat a whiteout like every other new inode."""
    source = make_directory(fs, b"s")
    fs.attributes.set_attributes(source, SetAttributes(mode=0o2775, gid=42))
    make_file(fs, b"f", source)

    fs.namespace.rename(source, b"f", ROOT_INO, b"f", RENAME_WHITEOUT, caller=USER)

    assert look(fs, b"f", source).gid == 42


# --- files without a name (O_TMPFILE) ----------------------------------------------------------


async def test_file_without_a_name_can_be_linked_to_a_name(fs: Filesystem) -> None:
    """A file created with O_TMPFILE becomes an ordinary file when link(2) gives it a name."""
    before = fs.getattr(ROOT_INO)
    made = fs.namespace.make_nameless(ROOT_INO, 0o666, USER)
    fs.lookups.add(made.ino)
    fs.open_files.opened(made.ino, writes=True)
    assert (made.nlink, made.mode, made.uid) == (0, stat.S_IFREG | 0o644, USER.uid)
    assert (names(fs), fs.getattr(ROOT_INO)) == (set(), before)
    await fs.write(made.ino, 0, b"content")
    with pytest.raises(NoEntryError):
        fs.namespace.link(made.ino, ROOT_INO, b"f")

    fs.namespace.link(made.ino, ROOT_INO, b"f", is_linkable=True)
    fs.release(made.ino)
    fs.forget(made.ino, 1)
    assert look(fs, b"f").nlink == 1
    assert await fs.read(made.ino, 0, 9) == b"content"
    fs.namespace.link(made.ino, ROOT_INO, b"g")
    fs.namespace.unlink(ROOT_INO, b"f")
    fs.namespace.unlink(ROOT_INO, b"g")
    assert not exists(fs, made.ino)
    assert_sound(fs)


async def test_file_without_a_name_is_deleted_after_its_last_use(fs: Filesystem) -> None:
    """When the kernel has closed and forgotten a nameless file, the file is deleted."""
    made = fs.namespace.make_nameless(ROOT_INO, 0o666, USER)
    fs.lookups.add(made.ino)
    fs.open_files.opened(made.ino, writes=True)
    await fs.write(made.ino, 0, b"content")
    fs.release(made.ino)
    assert exists(fs, made.ino)
    fs.forget(made.ino, 1)
    assert not exists(fs, made.ino)
    assert_sound(fs)


async def test_file_without_a_name_is_purged_after_the_daemon_is_killed(volume: Volume) -> None:
    """If the daemon is killed, the next mount purges files that never had a name."""
    async with volume.mounted() as fs:
        made = fs.namespace.make_nameless(ROOT_INO, 0o666, USER)
        volume.commit()
    async with volume.mounted() as fs:
        assert exists(fs, made.ino)
        fs.adopt_orphans()
        await fs.orphans.purge(made.ino)
        assert not exists(fs, made.ino)


async def test_file_without_a_name_inherits_group_and_acl_of_its_directory(fs: Filesystem) -> None:
    """A nameless file has the group and the ACL that a named file would have."""
    directory = make_directory(fs, b"d")
    fs.attributes.set_attributes(directory, SetAttributes(mode=0o2777, gid=77))
    fs.xattrs.set(directory, acl.DEFAULT, DEFAULT_ACL, ROOT)
    named = fs.namespace.make_node(directory, b"f", stat.S_IFREG | 0o666, USER)
    nameless = fs.namespace.make_nameless(directory, 0o666, USER)
    fs.open_files.opened(nameless.ino)
    assert nameless.gid == named.gid == 77
    assert nameless.mode == named.mode
    assert fs.xattrs.get(nameless.ino, acl.ACCESS) == fs.xattrs.get(named.ino, acl.ACCESS)


# --- namespace of a read-only mount ------------------------------------------------------------


async def test_degraded_mount_refuses_changes_of_names_and_attributes(fs: Filesystem) -> None:
    make_directory(fs, b"d")
    ino = make_file(fs, b"f")
    fs.status.enter(MountState.DEGRADED, "a test")
    space = fs.namespace
    for change in (
        lambda: make_file(fs, b"g"),
        lambda: make_directory(fs, b"g"),
        lambda: space.make_symlink(ROOT_INO, b"g", b"t", USER),
        lambda: space.link(ino, ROOT_INO, b"g"),
        lambda: space.unlink(ROOT_INO, b"f"),
        lambda: space.remove_directory(ROOT_INO, b"d"),
        lambda: space.rename(ROOT_INO, b"f", ROOT_INO, b"g"),
        lambda: fs.xattrs.set(ino, b"user.a", b"1", ROOT),
    ):
        with pytest.raises(ReadOnlyStateError):
            change()
    assert names(fs) == {b"d", b"f"}
