"""What a crash leaves in the cache directory beside the rows.

Owns: how much of a file is believed after a cut of power; files that no row knows.
Does not know: tasks, the store. Runs at mount, before any task.
"""

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.meta import blocks, cached
from s3fs_meta.meta.database import Database
from s3fs_meta.model import BlockId


def distrust(db: Database, files: BlockFiles) -> None:
    """Cut each file behind what was synced; reading what lay there is EIO from now on.

    Perhaps all of it reached the disk, but nothing tells it from zeros: the kernel writes pages
    in any order, a size before its pages, a page before the rest of it was filled. Looking for
    holes would not do: a page that was half full at its first writing is none.
    """
    for tail in cached.unsynced_tails(db):
        files.cut_after(tail.block, tail.synced_bytes)


def let_strays_go(db: Database, files: BlockFiles) -> None:
    """Remove files that no row knows: of groups that were undone, of fetches without a row.

    It takes time by the number of files: they are bounded, and this is only done after a crash.
    """
    known = {block for block, _state, _size in cached.rows_with_size(db)}
    for block in files.numbers():
        if block not in known and not _may_be_needed(db, block):
            files.remove(block)


def _may_be_needed(db: Database, block: BlockId) -> bool:
    """Return whether fsck could make use of a file: its block has no other place."""
    row = blocks.find(db, block)
    return row is not None and row.pack is None
