"""Recovery of the cache directory after a crash.

Owns: how much of a file is trusted after a power cut; files without a row.
Keeps: a file without a row is removed only if a pack has its content, or if it was made after the
database last changed; else it is quarantined.
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
    """Truncate each file after its synced bytes; reading the removed rest fails with EIO.

    The rest may have reached the disk, but it cannot be distinguished from zeros: the kernel
    writes pages in any order, a size before its pages, and a page before it is full. Searching for
    holes does not help: a page that was half full when it was first written is no hole.
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
    undone_after_ns: int | None = None,
) -> int:
    """Remove files without a row if the bucket has their content; quarantine all others.

    A group that was rolled back leaves such files. So does restoring the database from a backup,
    and then the files may be the only copies. The ctimes distinguish the two: the group that a kill
    undid was the last, so its files are newer than the database and its log; a database that was
    put back is newer than all files. The time grows with the number of files, which is bounded; in
    a thread.

    Args:
        db: not used by other tasks meanwhile.
        files: the block files of this database.
        quarantine: a directory for block files on the same disk, made if needed.
        block_hash: the keyring's; None: no content can be verified.
        first: files of smaller numbers are ignored.
        undone_after_ns: the ctime of the database after a kill. If no stray file is older, one
            undone group made all of them, and they are removed. None: ctimes prove nothing.

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
    if undone_after_ns is not None and all(
        files.changed_ns(block) >= undone_after_ns for block in kept
    ):
        kept = []
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
    """Return whether a pack has the content of a file, by its hash; true for an empty file."""
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
    """Return whether fsck could use a file: its block has a row, but is in no pack."""
    row = blocks.find(db, block)
    return row is not None and row.pack is None
