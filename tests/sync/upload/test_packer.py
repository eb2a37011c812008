"""The packer: it hashes sealed blocks and puts them into packs."""

import os
from pathlib import Path

import pytest

from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.codec import pack as pack_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.limits import MIB, PACK_BYTES_TARGET
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino
from s3fs_meta.sync.upload.packer import Packer, Sealed

KEYRING = Keyring(None, bytes(32))


@pytest.fixture
def files(tmp_path: Path) -> BlockFiles:
    """Return an empty directory of block files."""
    return BlockFiles(tmp_path / "blocks", tmp_path / "tmp")


def sealed(files: BlockFiles, number: int, content: bytes) -> Sealed:
    """Make one sealed block."""
    files.create(BlockId(number), 0, content)
    return Sealed(BlockId(number), Ino(1), BlockIndex(number), len(content))


def test_block_of_zeros_is_recognised(files: BlockFiles) -> None:
    """A block is a block of zeros only if all of its bytes are zero."""
    packer = Packer(files, KEYRING, "zstd-1", lambda: Epoch(1))
    blocks = [sealed(files, 1, bytes(100)), sealed(files, 2, bytes(99) + b"\1")]

    hashed, lost = packer.hash_all(blocks)

    assert [one.is_zero for one in hashed] == [True, False]
    assert lost == []


def test_lost_block_does_not_stop_the_hashing_of_other_blocks(files: BlockFiles) -> None:
    """A block without a file is reported as lost, and the other blocks are hashed."""
    packer = Packer(files, KEYRING, "zstd-1", lambda: Epoch(1))
    blocks = [sealed(files, 1, b"gone"), sealed(files, 2, b"here")]
    files.remove(BlockId(1))

    hashed, lost = packer.hash_all(blocks)

    assert [one.sealed.block for one in hashed] == [2]
    assert [exc.block for exc in lost] == [1]


def test_blocks_are_distributed_over_the_required_number_of_packs(files: BlockFiles) -> None:
    """The blocks are distributed over packs so that each block is in exactly one pack."""
    packer = Packer(files, KEYRING, "none", lambda: Epoch(1))
    contents = [os.urandom(MIB) for _ in range(PACK_BYTES_TARGET // MIB + 2)]
    hashed, _lost = packer.hash_all(
        [sealed(files, number, content) for number, content in enumerate(contents, 1)]
    )

    first, end = packer.fill_next(hashed, 0)
    second, last = packer.fill_next(hashed, end)

    assert (end, last) == (PACK_BYTES_TARGET // MIB, len(hashed))
    packs = [first, second]
    found = {
        entry.block: pack_codec.open_block(
            KEYRING,
            pack.key,
            pack.data[entry.offset : entry.offset + entry.stored_bytes],
            entry.offset,
            entry.plain_bytes,
            entry.hash,
        )
        for pack in packs
        for entry in pack.entries
    }
    assert found == dict(enumerate(contents, 1))
