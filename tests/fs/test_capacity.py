"""Tests of what counts against the capacity of a filesystem."""

import pytest

from s3fs_meta.errors import NoSpaceLeftError
from s3fs_meta.fs import acl
from s3fs_meta.fs.acl import GROUP_OBJ, OTHER, USER_OBJ, AclEntry
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.fs.namespace import RENAME_WHITEOUT
from s3fs_meta.fs.trees.clone import CloneTarget
from s3fs_meta.limits import KIB
from s3fs_meta.meta.tables import xattrs
from s3fs_meta.model import ROOT_INO, Ino
from tests.fs.conftest import (
    BLOCK_BYTES,
    NAMED,
    ROOT,
    USER,
    Volume,
    look,
    make_directory,
    make_file,
)
from tests.fs.trees.samples import assert_sound, clone, settled


def counted(fs: Filesystem) -> int:
    """Compare the counter of extended attributes with a scan of the rows; return the counter."""
    kept = fs.db.counters.xattr_bytes
    assert kept is not None
    xattrs.count_bytes(fs.db)
    assert kept == fs.db.counters.xattr_bytes
    return kept


async def test_extended_attributes_count_against_the_capacity(fs: Filesystem) -> None:
    """Attribute names and values count against the capacity. A removal frees their space."""
    ino = make_file(fs, b"f")
    fs.set_capacity(4 * KIB)

    fs.xattrs.set(ino, b"user.a", b"x" * 3000, USER)
    assert fs.statfs().free_bytes == 4 * KIB - 3006
    with pytest.raises(NoSpaceLeftError):
        fs.xattrs.set(ino, b"user.b", b"x" * 3000, USER)
    with pytest.raises(NoSpaceLeftError):
        await fs.write(ino, 0, b"x" * 2000)
    fs.xattrs.set(ino, b"user.a", b"y" * 4000, USER)
    fs.xattrs.set(ino, b"user.a", b"z" * 100, USER)
    await fs.write(ino, 0, b"x" * 2000)
    fs.xattrs.remove(ino, b"user.a")

    assert counted(fs) == 0
    assert fs.statfs().free_bytes == 4 * KIB - 2000


async def test_existing_extended_attributes_count_against_a_new_capacity(
    fs: Filesystem, volume: Volume
) -> None:
    """Attributes that exist when a capacity is set count against it, even after a remount."""
    ino = make_file(fs, b"f")
    fs.xattrs.set(ino, b"user.a", b"x" * 3000, USER)
    assert fs.db.counters.xattr_bytes is None
    fs.set_capacity(4 * KIB)
    assert counted(fs) == 3006
    volume.commit()
    fs.db.close()
    volume.session.volume.state_dir.unlock()

    async with volume.mounted() as again:
        with pytest.raises(NoSpaceLeftError):
            again.xattrs.set(ino, b"user.b", b"x" * 3000, USER)
        again.adopt_orphans()
        assert counted(again) == 3006


async def test_duplicate_content_uses_no_space_after_upload(fs: Filesystem, volume: Volume) -> None:
    """After its upload, duplicate content uses no space in ``df``; see SECURITY.md."""
    await fs.write(make_file(fs, b"secret"), 0, b"x" * 3000)
    await volume.upload()
    before = fs.statfs().free_bytes
    await fs.write(make_file(fs, b"guess"), 0, b"x" * 3000)
    await fs.write(make_file(fs, b"wrong"), 0, b"y" * 2000)
    assert fs.statfs().free_bytes == before - 5000

    await volume.upload()

    assert fs.statfs().free_bytes == before - 2000


async def _sharing(fs: Filesystem, volume: Volume) -> tuple[Ino, Ino]:
    """Return two files that share one uploaded block of 3,000 bytes."""
    ino, other = make_file(fs, b"f"), make_file(fs, b"g")
    await fs.write(ino, 0, b"x" * 3000)
    await volume.upload()
    assert await fs.ranges.copy(ino, 0, other, 0, 3000) == 3000
    return ino, other


@pytest.mark.parametrize("offset", [0, 1000], ids=["complete block", "part of a block"])
async def test_overwriting_content_shared_with_another_file_counts_against_the_capacity(
    fs: Filesystem, volume: Volume, offset: int
) -> None:
    """The other file keeps the old content. Overwriting unshared content needs no space."""
    ino, other = await _sharing(fs, volume)
    fs.set_capacity(5000)
    with pytest.raises(NoSpaceLeftError):
        await fs.write(other, offset, b"y" * (3000 - offset))
    assert fs.statfs().free_bytes == 2000

    fs.set_capacity(6000)
    await fs.write(other, offset, b"y" * (3000 - offset))
    assert fs.statfs().free_bytes == 0
    await fs.write(ino, offset, b"z" * (3000 - offset))
    await fs.write(other, offset, b"z" * (3000 - offset))
    assert fs.statfs().free_bytes == 0


async def test_truncation_inside_a_shared_block_counts_against_the_capacity(
    fs: Filesystem, volume: Volume
) -> None:
    """The other file keeps all bytes of the block. Blocks that the truncation frees make room."""
    _, other = await _sharing(fs, volume)
    fs.set_capacity(5000)
    with pytest.raises(NoSpaceLeftError):
        await fs.data.truncate(other, 2500)
    assert fs.getattr(other).size_bytes == 3000
    assert fs.statfs().free_bytes == 2000

    await fs.data.truncate(other, 2000)
    assert fs.statfs().free_bytes == 0
    await fs.data.truncate(other, 1000)
    assert fs.statfs().free_bytes == 1000
    assert_sound(fs)


async def test_truncation_inside_a_shared_block_of_a_full_filesystem_uses_the_space_it_frees(
    fs: Filesystem, volume: Volume
) -> None:
    ino, other = make_file(fs, b"f"), make_file(fs, b"g")
    await fs.write(ino, 0, b"x" * BLOCK_BYTES)
    await volume.upload()
    assert await fs.ranges.copy(ino, 0, other, 0, BLOCK_BYTES) == BLOCK_BYTES
    await fs.write(other, BLOCK_BYTES, b"y" * BLOCK_BYTES)
    fs.set_capacity(2 * BLOCK_BYTES)

    await fs.data.truncate(other, BLOCK_BYTES - 1)

    assert fs.statfs().free_bytes == 1
    assert_sound(fs)


async def test_inherited_acls_count_against_the_capacity(fs: Filesystem) -> None:
    top = make_directory(fs, b"d")
    fs.xattrs.set(top, acl.DEFAULT, NAMED, ROOT)
    size_bytes = len(acl.DEFAULT) + len(NAMED)
    fs.set_capacity(size_bytes + 2 * len(acl.ACCESS) + 5 * len(NAMED) // 2)

    fs.namespace.make_node(top, b"one", 0o100666, USER)
    with pytest.raises(NoSpaceLeftError):
        fs.namespace.make_directory(top, b"both", 0o777, USER)
    fs.namespace.make_node(top, b"two", 0o100666, USER)
    with pytest.raises(NoSpaceLeftError):
        fs.namespace.make_node(top, b"three", 0o100666, USER)
    fs.namespace.make_node(ROOT_INO, b"without", 0o100666, USER)

    assert counted(fs) == size_bytes + 2 * (len(acl.ACCESS) + len(NAMED))


async def test_inherited_acl_of_a_whiteout_counts_against_the_capacity(fs: Filesystem) -> None:
    """A rename whose whiteout does not fit changes nothing. Without a whiteout it succeeds."""
    directory = make_directory(fs, b"d")
    ino = make_file(fs, b"f", directory)
    fs.xattrs.set(directory, acl.DEFAULT, NAMED, ROOT)
    size_bytes = len(acl.DEFAULT) + len(acl.ACCESS) + 2 * len(NAMED)
    names = (directory, b"f", ROOT_INO, b"g")
    fs.set_capacity(size_bytes - 1)

    with pytest.raises(NoSpaceLeftError):
        fs.namespace.rename(*names, RENAME_WHITEOUT, caller=USER)
    assert look(fs, b"f", directory).ino == ino
    assert fs.lookup(ROOT_INO, b"g") is None
    fs.namespace.rename(*names)
    fs.namespace.rename(ROOT_INO, b"g", directory, b"f")
    fs.set_capacity(size_bytes)
    fs.namespace.rename(*names, RENAME_WHITEOUT, caller=USER)

    assert look(fs, b"g").ino == ino
    assert counted(fs) == size_bytes
    assert_sound(fs)


async def test_acl_that_is_not_stored_needs_no_space(fs: Filesystem) -> None:
    """On a full filesystem, cp -a can set an ACL that only repeats the mode, or remove an ACL."""
    ino, directory = make_file(fs, b"f"), make_directory(fs, b"d")
    minimal = acl.encode([AclEntry(USER_OBJ, 6), AclEntry(GROUP_OBJ, 4), AclEntry(OTHER, 0)])
    fs.set_capacity(1)

    fs.xattrs.set(ino, acl.ACCESS, minimal, ROOT)
    fs.xattrs.set(directory, acl.DEFAULT, acl.encode([]), ROOT)
    with pytest.raises(NoSpaceLeftError):
        fs.xattrs.set(ino, acl.ACCESS, NAMED, ROOT)

    assert fs.getattr(ino).mode & 0o777 == 0o640
    assert counted(fs) == 0


async def test_extended_attributes_of_copied_and_removed_trees_are_counted(fs: Filesystem) -> None:
    """A tree whose attributes exceed the capacity cannot be copied. Removing a tree frees space."""
    top = make_directory(fs, b"d")
    for number in range(5):
        ino = make_file(fs, b"%d" % number, top)
        fs.xattrs.set(ino, b"user.a", b"x" * 994, USER)
    fs.xattrs.set(top, b"user.a", b"x" * 994, USER)
    fs.set_capacity(15_000)
    assert counted(fs) == 6000

    await clone(fs, b"d")
    assert counted(fs) == 12_000
    with pytest.raises(NoSpaceLeftError):
        await clone(fs, b"d", CloneTarget(ROOT_INO, b"more"))
    assert fs.lookup(ROOT_INO, b"more") is None
    fs.tree_removal.remove(ROOT_INO, b"d", top)
    await settled(fs)

    assert counted(fs) == 6000
    assert_sound(fs)
