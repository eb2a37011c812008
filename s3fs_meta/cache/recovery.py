"""What a crash leaves in the cache directory beside the rows.

Owns: how much of a file is believed after a cut of power; files that no row knows.
Keeps: a file of unknown origin is removed only if a pack has its content; else it is quarantined.
Does not know: tasks, the store. Runs at mount, before any task.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.errors import LostBlockError
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import blocks, cached_blocks
from s3fs_meta.model import BlockId

_FIRST: Final = BlockId(0)


def distrust(db: Database, files: BlockFiles) -> None:
    """Cut each file behind what was synced; reading what lay there is EIO from now on.

    Perhaps all of it reached the disk, but nothing tells it from zeros: the kernel writes pages
    in any order, a size before its pages, a page before the rest of it was filled. Looking for
    holes would not do: a page that was half full at its first writing is none.
    """
    for tail in cached_blocks.unsynced_tails(db):
        files.cut_after(tail.block, tail.synced_bytes)


def let_strays_go(
    db: Database,
    files: BlockFiles,
    quarantine: Path,
    block_hash: Callable[[bytes], bytes] | None,
    *,
    first: BlockId = _FIRST,
) -> int:
    """Remove files that no row knows if the bucket has their content; quarantine all others.

    A group that was undone leaves such files, and so does a database that was put back from a
    backup: then they may be the only copy. Takes time by the number of files, which are bounded;
    in a thread.

    Args:
        db: not used by others meanwhile.
        files: the files of the database.
        quarantine: a directory for block files on the same disk, made if it is needed.
        block_hash: of the keys; None: nothing can be proven.
        first: files of smaller numbers are left alone.

    Returns:
        How many files were quarantined.
    """
    known = {block for block, _state, _size in cached_blocks.rows_with_size(db)}
    strays = [
        block
        for block in files.numbers(first)
        if block not in known and not _may_be_needed(db, block)
    ]
    kept = [block for block in strays if not is_stored(db, files, block, block_hash)]
    for block in set(strays).difference(kept):
        files.remove(block)
    files.quarantine(kept, quarantine)
    return len(kept)


def is_stored(
    db: Database,
    files: BlockFiles,
    block: BlockId,
    block_hash: Callable[[bytes], bytes] | None,
) -> bool:
    """Return whether a pack has all that is in a file, by its hash; a file without content has it."""
    size_bytes = files.size(block)
    row = blocks.find(db, block)
    if not size_bytes or block_hash is None or row is None or row.hash is None:
        return not size_bytes
    if size_bytes != row.plain_bytes:
        return False
    try:
        return block_hash(files.read(block, 0, size_bytes)) == row.hash
    except LostBlockError:
        return False


def _may_be_needed(db: Database, block: BlockId) -> bool:
    """Return whether fsck could make use of a file: its block has no other place."""
    row = blocks.find(db, block)
    return row is not None and row.pack is None
