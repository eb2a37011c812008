"""Type checks of rows from untrusted databases: SQLite stores any type in any column.

Owns: the valid types of each kind of column. Does not know: tables.
A row with a wrong type, or an incomplete location, is refused with BadRowError when it is read, so
that only its file is unreadable. fsck checks ranges; this module refuses only numbers that do not
fit into an answer. Numbers are joined with ``|``, which accepts only integers.
"""

from s3fs_meta.errors import BadRowError
from s3fs_meta.meta.db.statements import Row


def blob(value: object, what: str, ino: int) -> bytes:
    """Return the bytes of a column. Raises BadRowError."""
    if type(value) is not bytes:
        raise BadRowError(what, ino)
    return value


def require_location(row: Row, ino: int) -> None:
    """Refuse a row of block, plain_bytes, hash, pack, pack_offset, stored_bytes.

    Raises:
        BadRowError: a value has another type or is negative, or the location is incomplete.
    """
    block, plain_bytes, content_hash, pack, offset, stored_bytes = row
    try:
        numbers = block | plain_bytes | (pack or 0) | (offset or 0) | (stored_bytes or 0)
    except TypeError as exc:
        raise BadRowError("a block", ino) from exc
    if numbers < 0 or not (content_hash is None or type(content_hash) is bytes):
        raise BadRowError("a block", ino)
    if pack is not None and (content_hash is None or offset is None or stored_bytes is None):
        raise BadRowError("a block", ino)


def require_numbers(rows: list[Row], what: str, ino: int) -> list[Row]:
    """Return rows that contain only integers. Raises BadRowError."""
    for row in rows:
        for value in row:
            if type(value) is not int:
                raise BadRowError(what, ino)
    return rows
