"""The blocks in one cut of the filesystem, with each block's location in a pack.

Owns: the locations that are recorded after the cut, for its changelog or for the copy of an image.
Does not know: uploads, rows.
"""

from collections.abc import Collection
from typing import NamedTuple

from s3fs_meta.meta.placements import Placed
from s3fs_meta.model import BlockId, ObjectKey, PackId


class PackRecord(NamedTuple):
    """A confirmed pack, with the columns that an image copy needs."""

    pack: PackId
    object_key: ObjectKey
    object_bytes: int


class Cut:
    """The blocks that were sealed at a cut, and the location of each block in a pack."""

    def __init__(self, pending: set[BlockId], next_block: BlockId) -> None:
        """Start with no locations.

        Args:
            pending: the sealed blocks.
            next_block: the number of the first block after the cut.
        """
        self.pending = pending
        self._next_block = next_block
        # The next changelog need not list the blocks of these packs.
        self.complete: set[PackId] = set()
        self.places: dict[BlockId, Placed] = {}
        self.packs: dict[PackId, PackRecord] = {}
        self.lost: set[BlockId] = set()
        self._stored: dict[bytes, Placed] = {}  # locations of stored blocks, by hash

    def resolve(self, placed: Placed, pack: PackRecord) -> bool:
        """Record the location of one block; blocks that are not in the cut are ignored.

        Returns:
            True if the changelog of the cut or the next changelog lists this location. The next
            changelog lists every block that is created after the cut, but an older block only if
            the pack of the block changed.
        """
        if placed.block not in self.pending:
            return placed.block >= self._next_block
        self.pending.discard(placed.block)
        self.places[placed.block] = placed
        self.packs[pack.pack] = pack
        self._stored.setdefault(placed.hash, placed)
        return True

    def equal(self, block: BlockId, content_hash: bytes) -> tuple[Placed, PackRecord] | None:
        """Return the location of a stored block with the content of a block of the cut, or None.

        The rows may no longer have the location of the stored block, because a zero block has
        become a hole, or because a file was removed after the cut.
        """
        known = self._stored.get(content_hash) if block in self.pending else None
        return None if known is None else (known._replace(block=block), self.packs[known.pack])

    def give_up(self, lost: Collection[BlockId]) -> None:
        """Record blocks of the cut as lost, so that the cut does not wait for their locations."""
        self.lost |= self.pending.intersection(lost)
        self.pending.difference_update(lost)
