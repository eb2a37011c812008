"""Do all names stand where their hashes say? The one question that SQL cannot answer by itself.

Owns: hashing every name, on a connection and in a thread of its own beside the other queries:
Python hashes while SQLite, which holds no interpreter lock, scans. On two cores that takes a third
off a check. Does not know: what to do about a misplaced name.
Tasks: one thread; ``close`` ends it.

The other connection may see a later moment than the check does. Every name is judged by itself,
so that makes no difference but in which names there are.
"""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from s3fs_meta.errors import S3fsError
from s3fs_meta.limits import COOKIE_COLLISION_BITS
from s3fs_meta.meta.db.database import Database

IS_BYTES: Final = "typeof(name) = 'blob'"  # other values are invalid names, and have no hash
_NAMES: Final = f"SELECT cookie >> {COOKIE_COLLISION_BITS}, name FROM dentries WHERE {IS_BYTES}"


def any_misplaced(db: Database) -> bool:
    """Return whether some name stands elsewhere. The hottest loop of a check: about 1 us a name."""
    name_hash = db.name_hash
    for place, name in db.iterate(_NAMES):  # noqa: SIM110 - any() costs a fifth more
        if name_hash(name) != place:
            return True
    return False


class NameHashes:
    """An answer that is being worked out; asked for once."""

    def __init__(self, db: Database, *, beside: bool) -> None:
        """Begin, if the journal mode lets a second connection read.

        Args:
            db: the connection of the check.
            beside: a second one sees the same rows: nothing was changed that is not committed.
        """
        self._db = db
        self._other: Database | None = None
        self._answer: Future[bool] | None = None
        self._executor: ThreadPoolExecutor | None = None
        if beside and db.pragmas.is_wal:
            self._other = Database.open(db.path, db.pragmas, read_only=True, repairing=True)
            self._executor = ThreadPoolExecutor(1, "hash-names")
            self._answer = self._executor.submit(any_misplaced, self._other)

    def any_misplaced(self) -> bool:
        """Return whether some name stands elsewhere, when that is known."""
        if self._answer is None:
            return any_misplaced(self._db)
        return self._answer.result()

    def close(self) -> None:
        """End the thread, whether or not it has the answer."""
        if self._executor is None or self._other is None or self._answer is None:
            return
        if not self._answer.done():
            self._other.connection.interrupt()
        with contextlib.suppress(S3fsError):  # this stops the thread early
            self._answer.result()
        self._executor.shutdown()
        self._other.close()
