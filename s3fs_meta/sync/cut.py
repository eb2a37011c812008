"""The blocks of one cut of the filesystem, and where each of them ended up.

Owns: what a changelog, or the copy for an image, has to be told of blocks that were uploaded after
the cut. Does not know: uploads, rows.
"""

from collections.abc import Collection
from typing import NamedTuple

from s3fs_meta.meta.placements import Placed
from s3fs_meta.model import BlockId, ObjectKey, PackId


class PackRecord(NamedTuple):
    """A confirmed pack, as an image copy needs to hear of it."""

    pack: PackId
    object_key: ObjectKey
    object_bytes: int


class Cut:
    """The blocks that were only here at one moment, and where each of them ended up."""

    def __init__(self, pending: set[BlockId]) -> None:
        self.pending = pending
        self.places: dict[BlockId, Placed] = {}
        self.packs: dict[PackId, PackRecord] = {}
        self.lost: set[BlockId] = set()
        self._zeros: dict[bytes, Placed] = {}  # by hash

    def resolve(self, placed: Placed, pack: PackRecord) -> None:
        """Note the place of one block of the cut; others are ignored."""
        if placed.block in self.pending:
            self.pending.discard(placed.block)
            self.places[placed.block] = placed
            self.packs[pack.pack] = pack

    def resolve_zero(self, placed: Placed, pack: PackRecord) -> None:
        """As ``resolve`` for a block that is a hole by now: others of it need not be stored."""
        self._zeros[placed.hash] = placed
        self.resolve(placed, pack)

    def resolve_known_zero(self, block: BlockId, content_hash: bytes) -> bool:
        """Give a block the place of equal zeros; return whether there is one."""
        known = self._zeros.get(content_hash)
        if known is not None:
            self.resolve(known._replace(block=block), self.packs[known.pack])
        return known is not None

    def give_up(self, lost: Collection[BlockId]) -> None:
        """Note blocks that have no place anywhere."""
        self.lost |= self.pending.intersection(lost)
        self.pending.difference_update(lost)
