"""The cut of a txg, which records where its blocks were uploaded.

``test_uploader.py`` and ``test_writer.py`` test complete cuts.
"""

from s3fs_meta.meta.placements import Placed
from s3fs_meta.model import BlockId, ObjectKey, PackId
from s3fs_meta.sync.upload.cut import Cut, PackRecord

PACK = PackRecord(PackId(7), ObjectKey("pack/00/1-" + "0" * 32), 1000)


def placed(block: int, content_hash: bytes = b"h" * 32) -> Placed:
    """Return the placement of a block in an example pack."""
    return Placed(BlockId(block), content_hash, PACK.pack, 16, 60)


def test_txg_records_only_placements_of_its_own_blocks() -> None:
    """Each block of a txg is listed once, together with its pack."""
    cut = Cut({BlockId(1), BlockId(2)}, BlockId(10))
    assert not cut.resolve(placed(3), PACK)
    assert cut.resolve(placed(10), PACK), "the next txg lists a new block"
    assert (cut.places, cut.packs) == ({}, {})
    assert cut.resolve(placed(1), PACK)
    assert not cut.resolve(placed(1, b"x" * 32), PACK)
    assert cut.places == {1: placed(1)}
    assert cut.packs == {7: PACK}
    assert cut.pending == {2}


def test_equal_blocks_of_a_txg_share_a_location() -> None:
    """If several blocks of a txg are equal, only the first block is stored."""
    cut = Cut({BlockId(1), BlockId(2)}, BlockId(10))
    assert cut.equal(BlockId(2), b"z" * 32) is None
    cut.resolve(placed(1, b"z" * 32), PACK)
    assert cut.equal(BlockId(2), b"z" * 32) == (placed(2, b"z" * 32), PACK)
    assert cut.equal(BlockId(2), b"y" * 32) is None
    assert cut.equal(BlockId(3), b"z" * 32) is None


def test_txg_does_not_wait_for_lost_blocks() -> None:
    cut = Cut({BlockId(1), BlockId(2)}, BlockId(10))
    cut.give_up([BlockId(2), BlockId(9)])
    assert cut.lost == {2}
    assert cut.pending == {1}
