"""Checking the facts that a local database records about this host, before they are used.

Owns: the list of the rows of ``local_state`` whose format is checked. Does not know: the formats
(the module that writes a row also parses it), the use of the facts.
Keeps: a database is opened for a mount or a repair only if all these rows are valid. Some facts,
such as the key of the intent log or the head, are used only hours later or after a crash. An
invalid row would then look like a missing one, or raise an error in the middle of an upload.
"""

from pathlib import Path

from s3fs_meta.cache.crash_safety import intent_replay
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.meta.tables import local_state
from s3fs_meta.sync.chain import chain
from s3fs_meta.sync.chain import head as image_head
from s3fs_meta.sync.lease import lease_proof

NUMBERS = ("epoch", "own_txg", "floor", "shipped_seq", "block_floor")
HEADS = ("head", "attempt")


def open_checked(path: Path, pragmas: Pragmas, *, repairing: bool) -> Database:
    """Open a local database. With *repairing*, only properties of mkfs may be missing.

    Raises:
        FormatError: the database or one of the facts is damaged.
    """
    db = Database.open(path, pragmas, repairing=repairing)
    try:
        _require_valid(db)
    except BaseException:
        db.close()
        raise
    return db


def _require_valid(db: Database) -> None:
    for name in NUMBERS:
        local_state.number(db, name)
    for name in HEADS:
        image_head.recorded(db, name)
    chain.recorded(db)
    intent_replay.is_in_use(db)
    lease_proof.require_valid(db)
