"""Comparing two databases of one filesystem that should be states of the same history.

Owns: the facts that hold within a history. Each number is assigned only once: to a pack, to some
content, or to an inode with its birth time. A removed inode does not return. The change time of an
inode does not decrease. Does not know: the chain, the reason for the comparison.
Tasks: all calls block; call them in a thread, on databases that no other task uses during a call.
"""

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Final

from s3fs_meta.meta.db.attached import PAST, attached
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.pragmas import Pragmas

_CONTRADICTIONS: Final = (
    f"SELECT 1 FROM main.packs AS p JOIN {PAST}.packs AS q ON q.pack = p.pack"
    " WHERE q.object_key <> p.object_key LIMIT 1",
    f"SELECT 1 FROM main.blocks AS b JOIN {PAST}.blocks AS q ON q.block = b.block"
    " WHERE q.hash <> b.hash LIMIT 1",
)


def contradict(db: Database, later: Path) -> bool:
    """Return whether a database cannot be an earlier state of the database in the file *later*.

    The result is True in four cases. The first three are proofs: the databases use a number for
    different content; only *db* has assigned a number; *later* has an inode that *db* has removed.
    Fourth, *later* has an earlier change time, which may be the only trace of a rename; if a clock
    was wrong, this is a false alarm. False does not prove that there is only one history.
    """
    newest = Database.open(later, Pragmas(), read_only=True)
    try:
        ours, theirs = db.counters, newest.counters
        if ours.next_ino > theirs.next_ino or ours.next_block > theirs.next_block:
            return True
        if _have_other_inodes(db, newest):
            return True
    finally:
        newest.close()
    with attached(db, later):
        return any(db.one(sql) is not None for sql in _CONTRADICTIONS)


def _have_other_inodes(db: Database, newest: Database) -> bool:
    """Return whether the inodes in *newest* contradict the inodes in *db*.

    Inodes created after *db* are ignored. The comparison takes a second per million inodes.
    """
    ours, theirs = _times(db), _times(newest)
    end = db.counters.next_ino
    with closing(ours), closing(theirs):
        one = next(ours, None)
        for ino, birth_ns, ctime_ns in theirs:
            if ino >= end:
                return False
            while one is not None and one[0] < ino:  # *newest* has removed this inode
                one = next(ours, None)
            if one is None or one[0] > ino or one[1] != birth_ns or one[2] > ctime_ns:
                return True
    return False


def _times(db: Database) -> Generator[tuple[int, int, int], None, None]:
    # The two databases may have different schema versions, so no statement reads both tables.
    yield from db.inodes.iterate(
        "SELECT ino, ctime_ns + btime_delta_ns, ctime_ns FROM inodes ORDER BY ino"
    )
