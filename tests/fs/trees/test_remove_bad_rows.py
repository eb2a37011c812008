"""Tests of removals of trees whose rows have invalid values."""

import itertools

import pytest

from s3fs_meta.codec.changelog import Kind
from s3fs_meta.fs.filesystem import Filesystem
from s3fs_meta.meta.tables import block_map
from s3fs_meta.model import ROOT_INO, BlockId, BlockIndex, Ino
from s3fs_meta.mount_state import MountState
from s3fs_meta.sync.chain import abandoned_txgs, chain
from tests.fs.conftest import (
    Volume,
    make_directory,
    make_file,
    sliced,
)
from tests.polling import until
from tests.tasks import running

_NAMES = 12
_SLICE = 5


def _count(fs: Filesystem, table: str) -> int:
    row = fs.db.inodes.one(f"SELECT count(*) FROM {table}")
    assert row is not None
    return int(row[0])


async def _settled(fs: Filesystem) -> None:
    """Wait until every removal of a tree is complete, or the mount is read-only."""
    async with running(fs.run):
        await until(lambda: not len(fs.orphans.trees) or not fs.status.writable)


def _slice_sizes(fs: Filesystem) -> list[int]:
    """Remove all trees; return the number of names that each slice removed."""
    sizes: list[int] = []
    while len(fs.orphans.trees):
        before = _count(fs, "dentries")
        fs.tree_removal.remove_slice()
        sizes.append(before - _count(fs, "dentries"))
        assert len(sizes) < 10 * _NAMES, "every slice removes a name or a directory"
    return sizes


@sliced(names=_SLICE)
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("size", [0, 1, -1, -(1 << 63), (1 << 63) - 1])
async def test_wrong_size_of_a_directory_does_not_enlarge_a_slice_of_its_removal(
    fs: Filesystem, size: int, inner: bool
) -> None:
    """Unless the row of an inner directory cannot be read, all names are removed."""
    top = make_directory(fs, b"tree")
    bad = make_directory(fs, b"inner", top) if inner else top
    for number in range(_NAMES):
        make_file(fs, b"%d" % number, bad)
    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    fs.db.inodes.run("UPDATE inodes SET size_bytes = ? WHERE ino = ?", (size, bad))

    sizes = _slice_sizes(fs)

    assert max(sizes) <= _SLICE
    stays = inner and size < 0
    assert _count(fs, "dentries") == (_NAMES if stays else 0)
    assert _count(fs, "inodes") == (_NAMES + 2 if stays else 1)


_BLOCK_COLUMNS = ("refs", "plain_bytes", "pack", "stored_bytes")
_INVALID = ("'text'", "x'ff00'", "CAST(x'ff00' AS TEXT)", "1.5")


@pytest.mark.parametrize("value", _INVALID)
async def test_name_with_an_invalid_inode_number_is_removed_with_its_tree(
    fs: Filesystem, value: str
) -> None:
    """Only the inode, which then has no name, stays for fsck."""
    top = make_directory(fs, b"tree")
    bad = make_file(fs, b"bad", top)
    make_file(fs, b"good", top)
    fs.db.begin()
    fs.db.run(f"UPDATE dentries SET ino = {value} WHERE ino = ?", (bad,))

    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    await _settled(fs)

    assert fs.status.state is MountState.SERVING
    assert _count(fs, "dentries") == 0
    assert fs.db.inodes.all("SELECT ino FROM inodes WHERE ino <> 1") == [(bad,)]


async def _uploaded_tree(fs: Filesystem, volume: Volume) -> tuple[Ino, BlockId]:
    """Create a tree with two files; return its directory and the block of one file."""
    top = make_directory(fs, b"tree")
    good, bad = make_file(fs, b"good", top), make_file(fs, b"bad", top)
    await fs.write(good, 0, b"content of good")
    await fs.write(bad, 0, b"content of bad")
    await volume.upload()
    block = block_map.find(fs.db, bad, BlockIndex(0))
    assert block is not None
    return top, block


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *itertools.product(_BLOCK_COLUMNS, [*_INVALID, "-1"]),
        *((column, "9223372036854775807") for column in _BLOCK_COLUMNS[1:]),
    ],
)
async def test_block_with_an_unreadable_row_keeps_its_row_when_its_tree_is_removed(
    fs: Filesystem, volume: Volume, caplog: pytest.LogCaptureFixture, column: str, value: str
) -> None:
    """The removal deletes all other rows, and the mount keeps accepting changes."""
    top, bad = await _uploaded_tree(fs, volume)
    fs.db.begin()
    fs.db.run(f"UPDATE blocks SET {column} = {value} WHERE block = ?", (bad,))

    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    await _settled(fs)

    assert fs.status.state is MountState.SERVING
    assert _count(fs, "inodes") == 1
    assert _count(fs, "block_map") == 0
    assert fs.db.all("SELECT block FROM blocks") == [(bad,)]
    assert "1 blocks of removed files have invalid rows" in caplog.text


@pytest.mark.parametrize("value", _INVALID)
async def test_invalid_block_number_in_a_removed_tree_leaves_only_its_block(
    fs: Filesystem, volume: Volume, value: str
) -> None:
    top, bad = await _uploaded_tree(fs, volume)
    fs.db.begin()
    fs.db.run(f"UPDATE block_map SET block = {value} WHERE block = ?", (bad,))

    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    await _settled(fs)

    assert fs.status.state is MountState.SERVING
    assert _count(fs, "block_map") == 0
    assert fs.db.all("SELECT block, refs FROM blocks") == [(bad, 1)]


async def test_removed_tree_with_a_block_without_a_row_is_shipped_as_an_image(
    fs: Filesystem, volume: Volume
) -> None:
    """No other host could release the block with a changelog."""
    top, bad = await _uploaded_tree(fs, volume)
    fs.db.commit()
    # A statement outside a commit group is not recorded, like damage on the disk.
    fs.db.connection.execute("UPDATE block_map SET block = 99999 WHERE block = ?", (bad,))

    fs.tree_removal.remove(ROOT_INO, b"tree", top)
    await _settled(fs)

    assert abandoned_txgs.wanted(fs.db) is not None
    link = await volume.session.shipper.ship()
    assert link is not None
    opened = volume.session.volume
    fetched = await chain.fetch(opened.store, opened.keyring, opened.uuid, link.txg)
    assert fetched.changelog.kind is Kind.IMAGE
