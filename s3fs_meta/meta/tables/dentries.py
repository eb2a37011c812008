"""Rows of ``dentries``: names in directories, in readdir order.

Owns: names, their cookies, the counter of dentries.
Does not know: link counts, times, directory sizes (the caller updates them with ``inodes``).
Keeps: a name occurs at most once in a directory. Its cookie does not change when other names are
added or removed, so a readdir position stays valid.

A cookie is the shifted hash of the name plus a small number. The number is the lowest one that no
other name with the same hash has in the directory. Names with the same hash occur only in attacks
and in tests.
"""

import logging
from typing import Final

from s3fs_meta.errors import (
    BadRowError,
    DamagedDatabaseError,
    EntryExistsError,
    NoEntryError,
    NoSpaceLeftError,
)
from s3fs_meta.limits import COOKIE_COLLISION_BITS
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.db.statements import Row
from s3fs_meta.meta.tables import inodes, row_types
from s3fs_meta.model import Attributes, Cookie, Ino

_SHIFT: Final = COOKIE_COLLISION_BITS
_LAST: Final = (1 << COOKIE_COLLISION_BITS) - 1

_THE_ENTRY: Final = "parent = ?1 AND cookie BETWEEN ?2 AND ?2 + 255 AND name = ?3"
_FIND: Final = f"SELECT ino FROM dentries WHERE {_THE_ENTRY}"
_FIND_ATTRIBUTES: Final = (
    f"SELECT {inodes.COLUMNS_OF_NAMED} FROM dentries d LEFT JOIN inodes i ON i.ino = d.ino"
    " WHERE d.parent = ?1 AND d.cookie BETWEEN ?2 AND ?2 + 255 AND d.name = ?3"
)
_ADD: Final = "INSERT INTO dentries VALUES (?, ?, ?, ?)"
_ADD_IF_FREE: Final = "INSERT OR IGNORE INTO dentries VALUES (?, ?, ?, ?)"
_SAME_HASH: Final = (
    "SELECT cookie, name FROM dentries WHERE parent = ?1 AND cookie BETWEEN ?2 AND ?2 + 255"
    " ORDER BY cookie"
)
_FIND_COOKIE: Final = f"SELECT cookie, ino FROM dentries WHERE {_THE_ENTRY}"
_NAMES: Final = (
    "SELECT cookie, CAST(name AS BLOB) FROM dentries WHERE parent = ? AND cookie > ?"
    " ORDER BY cookie LIMIT ?"
)
_REMOVE: Final = "DELETE FROM dentries WHERE parent = ? AND cookie = ?"
_MOVE_IF_FREE: Final = (
    "UPDATE OR IGNORE dentries SET parent = ?3, cookie = ?4, name = ?5"
    " WHERE parent = ?1 AND cookie = ?2"
)
_REPLACE: Final = f"UPDATE dentries SET ino = ?4 WHERE {_THE_ENTRY}"
_ON_PAGE: Final = (
    " FROM dentries d CROSS JOIN inodes i ON i.ino = d.ino"
    " WHERE d.parent = ? AND d.cookie > ? AND d.cookie < 9223372036854775807 ORDER BY d.cookie LIMIT ?"
)
_PAGE: Final = f"SELECT d.name, d.cookie, {inodes.COLUMNS}{_ON_PAGE}"
# The page in which text is converted to blobs, because damaged text may not be UTF-8.
_PAGE_WITHOUT_TEXT: Final = (
    f"SELECT CAST(d.name AS BLOB), d.cookie, {inodes.COLUMNS_WITHOUT_TEXT}{_ON_PAGE}"
)

_log = logging.getLogger(__name__)


def find(db: Database, parent: Ino, name: bytes) -> Ino | None:
    """Return the inode of a name, or None if the directory has no such name."""
    row = db.one(_FIND, (parent, db.name_hash(name) << _SHIFT, name))
    return None if row is None else row[0]


def name_at(db: Database, parent: Ino, cookie: Cookie) -> bytes | None:
    """Return the name with a given cookie in a directory, or None if no name has the cookie."""
    row = db.one("SELECT name FROM dentries WHERE parent = ? AND cookie = ?", (parent, cookie))
    return None if row is None else row_types.blob(row[0], "a name", parent)


def find_attributes(db: Database, parent: Ino, name: bytes) -> Attributes | None:
    """Return the attributes of the inode of a name, or None if the name does not exist."""
    row = db.one(_FIND_ATTRIBUTES, (parent, db.name_hash(name) << _SHIFT, name))
    return None if row is None else inodes.newest(db, row)


def add(db: Database, parent: Ino, name: bytes, ino: Ino) -> None:
    """Add a name. Requires an open transaction.

    Raises:
        EntryExistsError: the directory already has the name; nothing was changed.
        NoSpaceLeftError: 256 other names in the directory have the same hash.
    """
    first = db.name_hash(name) << _SHIFT
    # If no directory has names with equal hashes, a free first cookie proves that the name is new.
    if db.shares_hashes or not db.run(_ADD_IF_FREE, (parent, first, name, ino)):
        cookie = _free_cookie(db, parent, name, first)
        db.run(_ADD, (parent, cookie, name, ino))
        db.note_shared_hash()
    db.counters.dentries += 1


def _free_cookie(db: Database, parent: Ino, name: bytes, first: int) -> int:
    rows = db.all(_SAME_HASH, (parent, first))
    if any(taken_name == name for _, taken_name in rows):
        raise EntryExistsError(parent, name)
    taken = {cookie for cookie, _ in rows}
    for cookie in range(first, first + _LAST + 1):
        if cookie not in taken:
            return cookie
    raise NoSpaceLeftError(f"directory {parent} has {len(taken)} names with the same hash")


def remove(db: Database, parent: Ino, name: bytes) -> Ino:
    """Remove a name and return its inode. Requires an open transaction.

    Raises:
        NoEntryError: the directory does not have the name.
    """
    row = db.one(_FIND_COOKIE, (parent, db.name_hash(name) << _SHIFT, name))
    if row is None:
        raise NoEntryError(parent, name)
    db.run(_REMOVE, (parent, row[0]))
    db.counters.dentries -= 1
    return Ino(row[1])


def remove_found(db: Database, parent: Ino, name: bytes) -> None:
    """Remove a name that the caller has just looked up. Requires an open transaction.

    Raises:
        NoEntryError: the name does not exist.
    """
    if db.shares_hashes:
        remove(db, parent, name)
        return
    if not db.run(_REMOVE, (parent, db.name_hash(name) << _SHIFT)):
        raise NoEntryError(parent, name)
    db.counters.dentries -= 1


def move_found(
    db: Database, parent: Ino, name: bytes, new_parent: Ino, new_name: bytes, ino: Ino
) -> None:
    """Rename an entry to a name that the caller knows to be unused. Requires an open transaction.

    Args:
        ino: inode of the entry.

    Raises:
        NoSpaceLeftError: 256 names in the new directory have the same hash as the new name.
    """
    if not db.shares_hashes:
        first, new_first = db.name_hash(name) << _SHIFT, db.name_hash(new_name) << _SHIFT
        if db.run(_MOVE_IF_FREE, (parent, first, new_parent, new_first, new_name)):
            return
    add(db, new_parent, new_name, ino)
    remove_found(db, parent, name)


def replace(db: Database, parent: Ino, name: bytes, ino: Ino) -> Ino:
    """Make a name refer to another inode; return the old inode. Requires an open transaction.

    Raises:
        NoEntryError: the directory does not have the name.
    """
    before = find(db, parent, name)
    if before is None:
        raise NoEntryError(parent, name)
    db.run(_REPLACE, (parent, db.name_hash(name) << _SHIFT, name, ino))
    return before


def is_empty(db: Database, parent: Ino) -> bool:
    """Return whether a directory has no names."""
    return db.one("SELECT 1 FROM dentries WHERE parent = ? LIMIT 1", (parent,)) is None


def page_of_names(
    db: Database, parent: Ino, after: Cookie, limit: int
) -> list[tuple[Cookie, bytes]]:
    """Return at most *limit* names after a cookie, each with its cookie, sorted by cookie."""
    return [(Cookie(at), bytes(name)) for at, name in db.all(_NAMES, (parent, after, limit))]


def page(
    db: Database, parent: Ino, after: Cookie, limit: int
) -> list[tuple[bytes, Cookie, Attributes]]:
    """Return at most *limit* names of a directory after a cookie, sorted by cookie.

    A listing in pages that starts at cookie 0 returns each name that stays in the directory exactly
    once. Other names may be added or removed between two pages. An inode with an unreadable row has
    the attributes of ``inodes.unreadable``.
    """
    return [listed(parent, row) for row in page_rows(db, parent, after, limit)]


def page_rows(db: Database, parent: Ino, after: Cookie, limit: int) -> list[Row]:
    """Return the same names as ``page``, in unchecked rows: name, cookie, ``inodes.COLUMNS``."""
    try:
        return db.inodes.all(_PAGE, (parent, after, limit))
    except DamagedDatabaseError:
        return db.inodes.all(_PAGE_WITHOUT_TEXT, (parent, after, limit))


def listed(parent: Ino, row: Row) -> tuple[bytes, Cookie, Attributes]:
    """Return the name, the cookie and the attributes in a row of ``page_rows``.

    Unreadable attributes are replaced with ``inodes.unreadable``, so that a listing has the name.
    """
    name, cookie = row[0], row[1]
    if type(cookie) is not int:
        raise BadRowError("a name", parent)
    if type(name) is not bytes:
        name = str(name).encode("utf-8", "surrogateescape")
    try:
        return name, Cookie(cookie), inodes.attributes_of(row[2:])
    except BadRowError as exc:
        _log.error("%s", exc)
        return name, Cookie(cookie), inodes.unreadable(row[2])
