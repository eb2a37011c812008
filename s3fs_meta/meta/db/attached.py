"""A second, read-only database next to the open one: an earlier state of the same filesystem.

Owns: attaching and detaching its file. Does not know: tables.
Keeps: the file is opened read-only and without locks; its owner may also have it open, but does not
change it. It is attached and detached while no group is open, because SQLite cannot detach a
database that a transaction reads.
Source: https://www.sqlite.org/lang_attach.html
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from s3fs_meta.meta.db import connections
from s3fs_meta.meta.db.database import Database

PAST: Final = "past"  # name of the attached database in SQL statements


@contextlib.contextmanager
def attached(db: Database, path: Path) -> Iterator[None]:
    """Let SQL statements in a with-block read the tables of another file as ``past.<table>``.

    Raises:
        DatabaseError, FormatError: the file cannot be read.
        DatabaseError: the open commit group is lost.
    """
    db.commit()
    _execute(db, f"ATTACH DATABASE ? AS {PAST}", (connections.immutable_uri(path),), path)
    try:
        yield
    finally:
        if not db.is_closed:
            try:
                db.commit()
            finally:
                _execute(db, f"DETACH DATABASE {PAST}", (), path)


def _execute(db: Database, sql: str, arguments: tuple[str, ...], path: Path) -> None:
    with connections.translating(str(path)):
        db.connection.execute(sql, arguments)
