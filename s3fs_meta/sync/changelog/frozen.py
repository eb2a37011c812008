"""A consistent snapshot of the filesystem on its way to the bucket: what a cut holds.

Owns: the values that pass between the shipper and the imager. Does not know: how a cut is made.
"""

from typing import NamedTuple

from s3fs_meta.meta.db.snapshot import Snapshot
from s3fs_meta.model import BlockId, Txg
from s3fs_meta.sync.chain.chain import Link
from s3fs_meta.sync.upload.cut import Cut


class Frozen(NamedTuple):
    """The values that the loop froze in one slice."""

    txg: Txg
    cut: Cut
    cut_ns: int
    last_seq: int
    next_block: BlockId
    floor: Txg  # the first retained txg
    snapshot: Snapshot | None  # None: only the writer's own connection can read the database


class Shipped(NamedTuple):
    """A txg that is in the bucket; the caller makes an image of it and closes the snapshot."""

    link: Link
    cut: Cut
    snapshot: Snapshot


def close(frozen: Frozen) -> None:
    """End the snapshot of a cut, if it has one; a checkpoint can empty the WAL then."""
    if frozen.snapshot is not None:
        frozen.snapshot.close()
