"""Locations of blocks and packs in the changelog of a cut."""

import pytest

from s3fs_meta.codec.changelog import Location, PackNote
from s3fs_meta.errors import MetadataError
from s3fs_meta.meta.placements import Placed
from s3fs_meta.meta.tables.pending import News, PackNews
from s3fs_meta.model import BlockId, BlockRow, ObjectKey, PackId, PackState
from s3fs_meta.sync.changelog.cut_content import locations_of, pack_notes_of
from s3fs_meta.sync.upload.cut import Cut, PackRecord

HASH = b"h" * 32
KEY = ObjectKey("pack/00/1-" + "0" * 32)


def row(number: int, pack: int | None) -> BlockRow:
    """Return the row of a block with 100 bytes."""
    placed = (None, None, None, None) if pack is None else (HASH, PackId(pack), 8, 50)
    return BlockRow(BlockId(number), 1, 100, *placed)


def test_changelog_has_the_locations_of_blocks_uploaded_after_its_snapshot() -> None:
    """The snapshot of a txg lacks the location of a block that is uploaded later."""
    cut = Cut({BlockId(2), BlockId(3)}, BlockId(4))
    cut.resolve(Placed(BlockId(2), HASH, PackId(7), 16, 60), PackRecord(PackId(7), KEY, 1000))
    cut.give_up([BlockId(3)])
    news = News([row(1, 5), row(2, None), row(3, None)], [])

    assert locations_of(news, cut) == (
        Location(BlockId(1), 100, HASH, PackId(5), 8, 50),
        Location(BlockId(2), 100, HASH, PackId(7), 16, 60),
        Location(BlockId(3), 100, bytes(32), None, None, None),
    )
    assert pack_notes_of(news, cut) == (
        (PackNote(PackId(7), KEY, 1000, PackState.STORED),),
        (),
    )


def test_changelog_without_a_required_block_location_is_refused() -> None:
    """A changelog must contain the location of each block, or other hosts cannot read it."""
    with pytest.raises(MetadataError):
        locations_of(News([row(1, None)], []), Cut(set(), BlockId(10)))


def test_changelog_reports_packs_without_a_row_as_deleted() -> None:
    """A condemned pack is reported as deleted only when its row is deleted."""
    condemned = PackNews(PackId(4), KEY, 1000, PackState.CONDEMNED)
    news = News([], [condemned, PackNews(PackId(5), None, None, None)])
    assert pack_notes_of(news, Cut(set(), BlockId(10))) == (
        (PackNote(PackId(4), KEY, 1000, PackState.CONDEMNED),),
        (PackId(5),),
    )
