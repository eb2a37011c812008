"""The check that the cookie of each dentry matches the hash of its name.

Owns: a thread with its own connection, which hashes every name, because SQL cannot compute the
hash. The other queries of fsck run at the same time, so on two cores fsck takes a third less time.
Does not know: the repair of a dentry with a wrong cookie.
Tasks: one thread; ``close`` ends it.

The thread's connection may read a later state than the other queries. Each name is checked
independently, so only the set of checked names can differ.
"""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from s3fs_meta.errors import S3fsError
from s3fs_meta.limits import COOKIE_COLLISION_BITS
from s3fs_meta.meta.db.database import Database

IS_BYTES: Final = "typeof(name) = 'blob'"  # a name of another SQL type violates invariant I22
_NAMES: Final = f"SELECT cookie >> {COOKIE_COLLISION_BITS}, name FROM dentries WHERE {IS_BYTES}"


def any_misplaced(db: Database) -> bool:
    """Return whether any name has a cookie that contradicts its hash; takes 1 us per name."""
    name_hash = db.name_hash
    for place, name in db.iterate(_NAMES):  # noqa: SIM110 - any() takes a fifth longer
        if name_hash(name) != place:
            return True
    return False


class NameHashes:
    """A check of all names that runs in a thread."""

    def __init__(self, db: Database, *, beside: bool) -> None:
        """Start the thread, if a second connection can read the database.

        Args:
            db: the database of the check.
            beside: True if all changes are committed, and a second connection reads the same rows.
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
        """Wait for the thread; return whether any name has a cookie that contradicts its hash."""
        if self._answer is None:
            return any_misplaced(self._db)
        return self._answer.result()

    def close(self) -> None:
        """Stop the thread, even if it has no result yet."""
        if self._executor is None or self._other is None or self._answer is None:
            return
        if not self._answer.done():
            self._other.connection.interrupt()
        with contextlib.suppress(S3fsError):  # an interrupted query raises S3fsError
            self._answer.result()
        self._executor.shutdown()
        self._other.close()
