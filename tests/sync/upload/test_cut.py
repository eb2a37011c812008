"""Notifications of a cut about its blocks. Whole cuts: test_uploader.py and test_shipper.py."""

from s3fs_meta.meta.placements import Placed
from s3fs_meta.model import BlockId, ObjectKey, PackId
from s3fs_meta.sync.upload.cut import Cut, PackRecord

PACK = PackRecord(PackId(7), ObjectKey("pack/00/1-" + "0" * 32), 1000)


def placed(block: int, content_hash: bytes = b"h" * 32) -> Placed:
    """Return a block that is in the pack."""
    return Placed(BlockId(block), content_hash, PACK.pack, 16, 60)


def test_only_blocks_of_the_cut_count() -> None:
    """Each once, with the pack that it is in."""
    cut = Cut({BlockId(1), BlockId(2)})
    cut.resolve(placed(3), PACK)
    assert (cut.places, cut.packs) == ({}, {})
    cut.resolve(placed(1), PACK)
    cut.resolve(placed(1, b"x" * 32), PACK)
    assert cut.places == {1: placed(1)}
    assert cut.packs == {7: PACK}
    assert cut.pending == {2}


def test_equal_blocks_of_a_cut_share_one_place() -> None:
    """Only the first had to be put into a pack; blocks that are not of the cut are others' work."""
    cut = Cut({BlockId(1), BlockId(2)})
    assert cut.equal(BlockId(2), b"z" * 32) is None
    cut.resolve(placed(1, b"z" * 32), PACK)
    assert cut.equal(BlockId(2), b"z" * 32) == (placed(2, b"z" * 32), PACK)
    assert cut.equal(BlockId(2), b"y" * 32) is None
    assert cut.equal(BlockId(3), b"z" * 32) is None


def test_lost_blocks_of_the_cut_keep_nothing_waiting() -> None:
    """Others were never awaited."""
    cut = Cut({BlockId(1), BlockId(2)})
    cut.give_up([BlockId(2), BlockId(9)])
    assert cut.lost == {2}
    assert cut.pending == {1}
