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
        self._stored: dict[bytes, Placed] = {}  # by hash

    def resolve(self, placed: Placed, pack: PackRecord) -> None:
        """Note the place of one block of the cut; others are ignored."""
        if placed.block in self.pending:
            self.pending.discard(placed.block)
            self.places[placed.block] = placed
            self.packs[pack.pack] = pack
            self._stored.setdefault(placed.hash, placed)

    def equal(self, block: BlockId, content_hash: bytes) -> tuple[Placed, PackRecord] | None:
        """Return where an equal block of the cut is, as the place of one that has none yet.

        So what only the cut names is stored once: zeros, which are holes by now, and blocks of
        files that were removed since.
        """
        known = self._stored.get(content_hash) if block in self.pending else None
        return None if known is None else (known._replace(block=block), self.packs[known.pack])

    def give_up(self, lost: Collection[BlockId]) -> None:
        """Note blocks that have no place anywhere."""
        self.lost |= self.pending.intersection(lost)
        self.pending.difference_update(lost)
