"""The content of a cut: a consistent snapshot of the filesystem, to be shipped as a txg.

Owns: the values that the shipper passes to the imager; the locations that a changelog lists, which
come from the rows of a cut and from later uploads. Does not know: how a cut is made, how rows and
uploads were collected, the chain.
"""

from typing import Final, NamedTuple

from s3fs_meta.codec.changelog import Location, PackNote
from s3fs_meta.errors import MetadataError
from s3fs_meta.meta.db.snapshot import Snapshot
from s3fs_meta.meta.placements import placement_of
from s3fs_meta.meta.tables.pending import News
from s3fs_meta.model import BlockId, ObjectKey, PackId, PackState, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.upload.cut import Cut

_NOWHERE: Final = bytes(32)  # a hash of zeros marks a block whose content is lost


class Frozen(NamedTuple):
    """The values that a cut records without yielding to other tasks."""

    txg: Txg
    cut: Cut
    cut_ns: int
    last_seq: int
    next_block: BlockId
    floor: Txg  # retention floor: the oldest retained txg
    snapshot: Snapshot | None  # None: the rows are read on the mount's own connection


class Shipped(NamedTuple):
    """A shipped txg with an open snapshot, from which an image can be made."""

    link: Link
    cut: Cut
    snapshot: Snapshot


def close(frozen: Frozen) -> None:
    """Close the snapshot of a cut, if it is open, so that SQLite can restart the WAL."""
    if frozen.snapshot is not None:
        frozen.snapshot.close()


def locations_of(news: News, cut: Cut) -> tuple[Location, ...]:
    """Return the locations of the blocks that a changelog lists.

    Raises:
        MetadataError: a block is in no pack and is not recorded as lost.
    """
    found: dict[BlockId, Location] = {}
    for row in news.blocks:
        placed = cut.places.get(row.block)
        location = row.hash, row.pack, row.pack_offset, row.stored_bytes
        if placed is None and None not in location:
            placed = placement_of(row)
        if placed is not None:
            at = placed.hash, placed.pack, placed.pack_offset, placed.stored_bytes
            found[row.block] = Location(row.block, row.plain_bytes, *at)
        elif row.block in cut.lost:
            found[row.block] = Location(row.block, row.plain_bytes, _NOWHERE, None, None, None)
        else:
            raise MetadataError(f"block {row.block} is in a txg but has no location in a pack", 0)
    return tuple(found.values())


def pack_notes_of(news: News, cut: Cut) -> tuple[tuple[PackNote, ...], tuple[PackId, ...]]:
    """Return the new and condemned packs for a changelog, and the IDs of deleted packs."""
    notes = {
        one.pack: PackNote(one.pack, one.object_key, one.object_bytes, PackState.STORED)
        for one in cut.packs.values()
    }
    forgotten: list[PackId] = []
    for news_row in news.packs:
        if news_row.object_key is None:
            forgotten.append(news_row.pack)
        else:
            assert news_row.object_bytes is not None, "the row of a pack has a size"
            assert news_row.state is not None, "the row of a pack has a state"
            notes[news_row.pack] = PackNote(
                news_row.pack,
                ObjectKey(news_row.object_key),
                news_row.object_bytes,
                PackState(news_row.state),
            )
    return tuple(notes.values()), tuple(forgotten)
