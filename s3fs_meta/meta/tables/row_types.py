"""Type checks of rows from untrusted databases; SQLite stores any type in any column.

Owns: the valid types of each kind of column, and decoding numbers from text. Does not know: tables.
A row with a value of the wrong type or an incomplete location raises BadRowError, so that only its
file becomes unreadable. Numbers only need to be non-negative; fsck checks their ranges. Numbers are
combined with ``|``, which accepts only integers.
"""

import re
from typing import Final

from s3fs_meta.errors import BadRowError
from s3fs_meta.meta.db.statements import Row

# Longer text is damaged: 19 digits hold every valid integer, and int() refuses over 4300 digits.
_DECIMAL: Final = re.compile("[0-9]{1,19}", re.ASCII)
_INTEGER_MAX: Final = (1 << 63) - 1  # the largest integer that SQLite stores


def decimal(text: str) -> int | None:
    """Return the number in a text of decimal digits, or None if it is not a number for SQLite."""
    if _DECIMAL.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= _INTEGER_MAX else None


def blob(value: object, what: str, ino: int) -> bytes:
    """Return the value of a blob column; raise BadRowError if it has a different type."""
    if type(value) is not bytes:
        raise BadRowError(what, ino)
    return value


def require_location(row: Row, ino: int) -> None:
    """Check a row of block, plain_bytes, hash, pack, pack_offset and stored_bytes.

    Raises:
        BadRowError: a value has the wrong type or is negative, or the location is incomplete.
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
    """Return rows unchanged; raise BadRowError if a value is not an integer."""
    for row in rows:
        for value in row:
            if type(value) is not int:
                raise BadRowError(what, ino)
    return rows
