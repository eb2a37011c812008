"""Tests of extended attributes: namespaces, limits and ACLs."""

import pytest

from s3fs_meta.errors import (
    AccessRefusedError,
    AttributeExistsError,
    AttributeRangeError,
    AttributeTooBigError,
    InvalidRequestError,
    NoAttributeError,
    NoInodeError,
    NoSpaceLeftError,
    NotPermittedError,
    NotSupportedError,
)
from s3fs_meta.fs import acl
from s3fs_meta.fs.acl import GROUP_OBJ, OTHER, USER_OBJ, AclEntry
from s3fs_meta.fs.attributes import SetAttributes
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.xattrs import CAPABILITY
from s3fs_meta.limits import XATTR_VALUE_BYTES_MAX
from s3fs_meta.meta.tables import inodes
from s3fs_meta.meta.tables import xattrs as rows
from s3fs_meta.model import ROOT_INO, Ino, InodeFlag
from tests.fs.conftest import NAMED, ROOT, T0, USER, Volume, make_directory, make_file

MINIMAL = acl.encode((AclEntry(USER_OBJ, 7), AclEntry(GROUP_OBJ, 5), AclEntry(OTHER, 1)))


@pytest.mark.parametrize("name", [b"user.a", b"trusted.a", b"security.a"])
async def test_xattr_value_is_read_back_unchanged(
    fs: Filesystem, volume: Volume, name: bytes
) -> None:
    """Any bytes can be the value of an attribute. A change sets ctime and not mtime."""
    ino = make_file(fs, b"f")
    now_ns = volume.clock.later()
    for value in (b"", b"\0\xff", b"x" * XATTR_VALUE_BYTES_MAX):
        fs.xattrs.set(ino, name, value, USER)
        assert fs.xattrs.get(ino, name) == value
    assert (fs.getattr(ino).ctime_ns, fs.getattr(ino).mtime_ns) == (now_ns, T0)


async def test_removed_xattr_does_not_exist(fs: Filesystem, volume: Volume) -> None:
    """Removing a missing attribute raises NoAttributeError."""
    ino = make_file(fs, b"user.a")
    fs.xattrs.set(ino, b"user.a", b"1", USER)
    now_ns = volume.clock.later()
    fs.xattrs.remove(ino, b"user.a")
    assert fs.getattr(ino).ctime_ns == now_ns
    with pytest.raises(NoAttributeError):
        fs.xattrs.remove(ino, b"user.a")
    with pytest.raises(NoAttributeError):
        fs.xattrs.get(ino, b"user.a")
    assert fs.lookup(ROOT_INO, b"user.a") is not None


async def test_removal_of_a_missing_acl_changes_nothing(fs: Filesystem, volume: Volume) -> None:
    """Removing an ACL that does not exist succeeds, as on a local filesystem."""
    directory = make_directory(fs, b"d")
    before = fs.getattr(directory)
    volume.clock.later()
    for name in (acl.ACCESS, acl.DEFAULT):
        fs.xattrs.remove(directory, name)
    assert fs.getattr(directory) == before


async def test_trusted_xattr_names_are_visible_only_to_root(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    for name in (b"user.b", b"trusted.a", b"user.a"):
        fs.xattrs.set(ino, name, b"", ROOT)
    assert fs.xattrs.names(ino, ROOT) == [b"trusted.a", b"user.a", b"user.b"]
    assert fs.xattrs.names(ino, USER) == [b"user.a", b"user.b"]
    assert fs.xattrs.names(ROOT_INO, USER) == []


async def test_invalid_xattrs_are_refused(fs: Filesystem) -> None:
    """Unknown namespaces, empty and long names, large values and missing inodes are refused."""
    ino = make_file(fs, b"f")
    for name in (b"system.other", b"a", b"users.x"):
        with pytest.raises(NotSupportedError):
            fs.xattrs.set(ino, name, b"", ROOT)
        with pytest.raises(NotSupportedError):
            fs.xattrs.get(ino, name)
        with pytest.raises(NotSupportedError):
            fs.xattrs.remove(ino, name)
    for name in (b"user.", b"trusted.", b"security."):
        with pytest.raises(InvalidRequestError):
            fs.xattrs.get(ino, name)
        with pytest.raises(InvalidRequestError):
            fs.xattrs.set(ino, name, b"", ROOT)
        with pytest.raises(InvalidRequestError):
            fs.xattrs.remove(ino, name)
    with pytest.raises(AttributeRangeError):
        fs.xattrs.set(ino, b"user." + b"n" * 251, b"", ROOT)
    with pytest.raises(AttributeTooBigError):
        fs.xattrs.set(ino, b"user.a", bytes(XATTR_VALUE_BYTES_MAX + 1), ROOT)
    with pytest.raises(NoInodeError):
        fs.xattrs.set(Ino(999), b"user.a", b"", ROOT)
    assert fs.xattrs.names(ino, ROOT) == []


async def test_list_of_all_xattr_names_of_an_inode_has_a_maximum_length(fs: Filesystem) -> None:
    """A new attribute is refused if the list of names would exceed 64 KiB."""
    ino = make_file(fs, b"f")
    for number in range(255):
        fs.xattrs.set(ino, b"user.%0250d" % number, b"", ROOT)
    with pytest.raises(NoSpaceLeftError):
        fs.xattrs.set(ino, b"user.%0250d" % 255, b"", ROOT)
    fs.xattrs.set(ino, b"user.%0250d" % 0, b"again", ROOT)
    fs.xattrs.set(ino, acl.ACCESS, NAMED, ROOT)
    assert sum(len(name) + 1 for name in fs.xattrs.names(ino, ROOT)) <= 65536


async def test_xattr_create_and_xattr_replace_flags_are_enforced(fs: Filesystem) -> None:
    ino = make_file(fs, b"f")
    with pytest.raises(NoAttributeError):
        fs.xattrs.set(ino, b"user.a", b"1", ROOT, must_exist=True)
    fs.xattrs.set(ino, b"user.a", b"1", ROOT, must_be_new=True)
    with pytest.raises(AttributeExistsError):
        fs.xattrs.set(ino, b"user.a", b"2", ROOT, must_be_new=True)
    fs.xattrs.set(ino, b"user.a", b"3", ROOT, must_exist=True)
    assert fs.xattrs.get(ino, b"user.a") == b"3"


async def test_flags_of_setxattr_are_checked_before_the_free_space(fs: Filesystem) -> None:
    """Programs use EEXIST as the result of a lock, also on a full filesystem, as on ext4."""
    ino = make_file(fs, b"f")
    fs.xattrs.set(ino, b"user.a", b"1", ROOT)
    fs.set_capacity(1)

    with pytest.raises(AttributeExistsError):
        fs.xattrs.set(ino, b"user.a", bytes(5000), ROOT, must_be_new=True)
    with pytest.raises(NoAttributeError):
        fs.xattrs.set(ino, b"user.b", bytes(5000), ROOT, must_exist=True)
    with pytest.raises(NoSpaceLeftError):
        fs.xattrs.set(ino, b"user.b", bytes(5000), ROOT, must_be_new=True)


async def test_empty_default_acl_in_a_row_is_ignored(fs: Filesystem) -> None:
    """Only a damaged database or a hostile bucket has such a row; fsck does not check it."""
    directory = make_directory(fs, b"d")
    file = make_file(fs, b"f")
    fs.db.begin()
    rows.set(fs.db, directory, acl.DEFAULT, acl.encode(()))
    rows.set(fs.db, file, acl.ACCESS, acl.encode(()))

    made = make_file(fs, b"made", directory)
    fs.attributes.set_attributes(file, SetAttributes(mode=0o100600))

    assert fs.getattr(made).mode & 0o777
    assert fs.getattr(file).mode == 0o100600
    assert fs.status.writable


async def test_chmod_of_a_file_with_a_damaged_acl_changes_nothing(fs: Filesystem) -> None:
    file = make_file(fs, b"f")
    fs.db.begin()
    rows.set(fs.db, file, acl.ACCESS, b"damaged")
    before = fs.getattr(file)

    with pytest.raises(InvalidRequestError):
        fs.attributes.set_attributes(file, SetAttributes(mode=0o100600))

    assert fs.getattr(file) == before


async def test_setting_an_access_acl_sets_the_mode(fs: Filesystem) -> None:
    """The ACL mask becomes the group bits of the mode. A minimal ACL is stored only as the mode."""
    ino = make_file(fs, b"f")
    fs.xattrs.set(ino, acl.ACCESS, NAMED, USER)
    assert (fs.getattr(ino).mode, fs.xattrs.get(ino, acl.ACCESS)) == (0o100761, NAMED)
    fs.xattrs.set(ino, acl.ACCESS, MINIMAL, USER)
    assert fs.getattr(ino).mode == 0o100751
    assert fs.xattrs.names(ino, ROOT) == []


async def test_invalid_acl_is_refused(fs: Filesystem) -> None:
    """An invalid ACL is refused, and so is a default ACL on a file."""
    ino, directory = make_file(fs, b"f"), make_directory(fs, b"d")
    with pytest.raises(InvalidRequestError):
        fs.xattrs.set(ino, acl.ACCESS, b"nonsense", USER)
    with pytest.raises(AccessRefusedError):
        fs.xattrs.set(ino, acl.DEFAULT, NAMED, USER)
    fs.xattrs.set(directory, acl.DEFAULT, NAMED, USER)
    assert fs.getattr(directory).mode == 0o040755
    fs.xattrs.set(directory, acl.DEFAULT, acl.encode(()), USER)
    assert fs.xattrs.names(directory, ROOT) == []


@pytest.mark.parametrize(
    ("uid", "gid", "groups", "kept"),
    [(0, 0, (), True), (1000, 100, (), True), (1000, 5, (100,), True), (1000, 5, (), False)],
)
async def test_setgid_bit_is_preserved_if_a_group_member_sets_an_acl(
    volume: Volume, uid: int, gid: int, groups: tuple[int, ...], kept: bool
) -> None:
    """Only root and members of the file's group keep the setgid bit when they set an ACL."""
    async with volume.mounted(supplementary_groups=groups) as fs:
        ino = make_file(fs, b"f", mode=0o2755)
        fs.xattrs.set(ino, acl.ACCESS, NAMED, USER._replace(uid=uid, gid=gid))
        assert bool(fs.getattr(ino).mode & 0o2000) is kept


async def test_query_for_a_missing_capability_of_an_open_file_is_answered_from_memory(
    fs: Filesystem,
) -> None:
    ino = make_file(fs, b"f")
    assert not fs.xattrs.lacks_capability(ino)
    fs.open(ino)
    assert fs.xattrs.lacks_capability(ino)
    fs.xattrs.set(ino, b"security.capability", b"x", ROOT)
    assert not fs.xattrs.lacks_capability(ino)
    fs.xattrs.remove(ino, b"security.capability")
    assert fs.xattrs.lacks_capability(ino)


@pytest.mark.parametrize("flag", [InodeFlag.APPEND_ONLY, InodeFlag.IMMUTABLE])
async def test_capability_can_be_removed_from_a_file_that_may_be_written(
    fs: Filesystem, flag: int
) -> None:
    """The kernel removes the capability before a write; if the removal fails, the write fails."""
    ino = make_file(fs, b"f")
    fs.xattrs.set(ino, CAPABILITY, b"x", ROOT)
    fs.db.begin()
    inodes.set_flag(fs.db, ino, flag, on=True)
    with pytest.raises(NotPermittedError):
        fs.xattrs.remove(ino, CAPABILITY)

    fs.open_files.opened(ino, writes=True).finishes = True

    with pytest.raises(NotPermittedError):
        fs.xattrs.remove(ino, b"user.a")
    fs.xattrs.remove(ino, CAPABILITY)
    assert fs.xattrs.names(ino, ROOT) == []
