"""Stray block files: files without a row in the local database.

Owns: removing those whose content is in the bucket, quarantining the others, the line for the user.
Does not know: which database is used.
A killed process leaves a few, created by the last, uncommitted group of operations: they are
removed. If the database was restored from a backup, there are many: they may be the only copy of
data written after the backup, so they are quarantined.
Design: docs/design/durability.md, "Life of a block".
"""

from typing import Final

import trio

from s3fs_meta.cache import recovery
from s3fs_meta.cache.block_files import BlockFiles
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import BlockId
from s3fs_meta.sync.state_dir import StateDir

ALL: Final = BlockId(0)


async def settle(
    state_dir: StateDir,
    db: Database,
    keyring: Keyring,
    stamp: str,
    first: BlockId = ALL,
    *,
    killed: bool = False,
) -> list[str]:
    """Remove the files that are in the bucket, quarantine the others; return lines for the user.

    Args:
        state_dir: locked.
        db: its database, which no other task uses meanwhile.
        keyring: of the filesystem.
        stamp: of the directory of quarantined files.
        first: files with smaller numbers are not touched. After a clean shutdown only files from
            ``next_block`` on can be strays, of another database; finding them costs one listing.
        killed: the last process that used the directory was killed, but the machine ran on; *db*
            is its database. Then files of its uncommitted operations are removed.

    Raises:
        OSError: the disk refused.
    """
    files = BlockFiles(state_dir.blocks, state_dir.tmp)
    kept = state_dir.quarantine(stamp)
    count = await trio.to_thread.run_sync(
        lambda: recovery.let_strays_go(
            db,
            files,
            kept / state_dir.blocks.name,
            keyring.block_hash,
            first=first,
            undone_ns=state_dir.since_change_ns if killed else None,
        )
    )
    if not count:
        return []
    return [
        f"{count} block files that {state_dir.database} does not know are quarantined in {kept}:"
        " a power cut undid the operations that made them, or the database is older than they are"
        " (restored from a backup); nothing uses or removes them, so remove that directory when"
        " you miss nothing"
    ]
