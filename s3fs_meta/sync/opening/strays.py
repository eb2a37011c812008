"""Stray block files: files without a row in the local database.

Owns: removing stray files whose content is in the bucket, quarantining all others, and the notice
to the user.
Does not know: which database is used.
A killed process leaves a few stray files, from its last, uncommitted group of operations; these
files are removed. If a database was restored from a backup, many stray files are left. They may be
the only copies of data that was written after the backup, so they are quarantined.
Design: docs/design/durability.md, "Life of a block".
"""

from typing import Final

from s3fs_meta.background_task import in_thread
from s3fs_meta.cache.crash_safety import recovery
from s3fs_meta.cache.files.block_files import BlockFiles
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.counted import counted
from s3fs_meta.meta.db.database import Database
from s3fs_meta.model import BlockId
from s3fs_meta.sync.host_state.state_dir import StateDir

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
    """Remove stray files whose content is in the bucket, quarantine the rest; return notices.

    Args:
        state_dir: the locked state directory.
        db: the database of *state_dir*, which no other task uses during the call.
        keyring: the keys of the filesystem.
        stamp: part of the name of the directory for quarantined files.
        first: files of blocks with smaller numbers are ignored. After a clean shutdown only files
            from ``next_block`` on can be strays, which another database left; finding these files
            takes one listing.
        killed: the last process that used *db* was killed, but the machine did not crash. Files of
            its uncommitted operations are removed.

    Raises:
        OSError: a file cannot be removed or moved.
    """
    files = BlockFiles(state_dir.blocks, state_dir.tmp)
    kept = state_dir.quarantine(stamp)
    count = await in_thread(
        lambda: recovery.settle_strays(
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
        f"quarantined in {kept}: {counted(count, 'block file')} without a row in"
        f" {state_dir.database}: a power cut undid the operations that made them, or the database"
        " is older than the files (restored from a backup). s3fs-meta neither uses nor removes"
        " these files; remove that directory when you are sure that no data is missing"
    ]
