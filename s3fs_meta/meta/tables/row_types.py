"""Type checks of rows from untrusted databases; SQLite stores any type in any column.

Owns: the valid types of each kind of column, and decoding numbers from text. Does not know: tables.
A row with a value of the wrong type or out of range, or with an incomplete location, raises
BadRowError, so that only its file becomes unreadable. The checks are cheap; fsck checks the exact
ranges. Numbers are combined with ``|``, which accepts only integers.
"""

import re
from typing import Final

from s3fs_meta.errors import BadRowError
from s3fs_meta.limits import BLOCK_BYTES_MAX, PACK_BYTES_MAX
from s3fs_meta.meta.db.statements import Row

# Longer text is damaged: 19 digits hold every valid integer, and int() refuses over 4300 digits.
_DECIMAL: Final = re.compile("[0-9]{1,19}", re.ASCII)
_INTEGER_MAX: Final = (1 << 63) - 1  # the largest integer that SQLite stores
_NUMBER_BITS: Final = 62  # numbers of inodes, blocks and packs are smaller than 2**62
_PACK_BITS: Final = PACK_BYTES_MAX.bit_length()
assert BLOCK_BYTES_MAX < 1 << _PACK_BITS, "the length of a block must be in range"


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
        BadRowError: a value has the wrong type or is out of range, or the location is incomplete.
            Without the check of the range, an intact pack would be marked as damaged.
    """
    block, plain_bytes, content_hash, pack, offset, stored_bytes = row
    try:
        numbers = block | (pack or 0)
        sizes = plain_bytes | (offset or 0) | (stored_bytes or 0)
    except TypeError as exc:
        raise BadRowError("a block", ino) from exc
    if numbers >> _NUMBER_BITS or sizes >> _PACK_BITS:
        raise BadRowError("a block", ino)
    if not (content_hash is None or type(content_hash) is bytes):
        raise BadRowError("a block", ino)
    if pack is not None and (content_hash is None or offset is None or stored_bytes is None):
        raise BadRowError("a block", ino)


def require_block_numbers(rows: list[Row], ino: int) -> list[Row]:
    """Return rows of a block map; raise BadRowError if a value is no integer or out of range."""
    for row in rows:
        for value in row:
            if type(value) is not int or value >> _NUMBER_BITS:
                raise BadRowError("the block map", ino)
    return rows


def require_numbers(rows: list[Row], what: str, ino: int) -> list[Row]:
    """Return rows unchanged; raise BadRowError if a value is not an integer."""
    for row in rows:
        for value in row:
            if type(value) is not int:
                raise BadRowError(what, ino)
    return rows
