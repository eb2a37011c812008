"""Parsing of JSON objects from an untrusted source.

Owns: parsing with bounds; the type and range of every field.
Does not know: the meaning of the fields.
Keeps: for any input the result is a value of the stated type and range, or FormatError.

The value ``true`` is not a number, all numbers are integers, and text has no control characters or
lone surrogates. A duplicate field is an error. A field that no getter has read is also an error.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from s3fs_meta.errors import FormatError

INTEGER_MAX: Final = (1 << 63) - 1  # largest integer that SQLite can store
VALUES_MAX: Final = 1000  # default limit for the commas and opening brackets in a JSON text

_HEX: Final = re.compile(r"[0-9a-f]*", re.ASCII)
_T = TypeVar("_T")


def dump(fields: Mapping[str, object]) -> bytes:
    """Return *fields* as ASCII JSON, sorted by name; equal fields produce equal bytes."""
    return json.dumps(fields, sort_keys=True, indent=1, allow_nan=False).encode("ascii")


class Fields:
    """One JSON object. Every getter removes its field; ``finish`` rejects the remaining fields."""

    def __init__(self, key: str, value: object) -> None:
        if not isinstance(value, dict):
            raise FormatError(key, "the JSON value is not an object")
        self._key = key
        self._left: dict[str, object] = dict(value)

    @classmethod
    def parse(cls, key: str, text: bytes, *, values_max: int = VALUES_MAX) -> "Fields":
        """Return the fields of the JSON text in the object *key*.

        Args:
            key: the name of the object, for errors.
            text: the JSON, in ASCII.
            values_max: maximum number of commas and opening brackets, which bounds the number of
                values. Without a maximum, parsing could use 100 times the size of the text in
                memory.

        Raises:
            FormatError: the text is not a JSON object, has a duplicate field, or has too many
                values.
        """
        if sum(text.count(mark) for mark in (b",", b"[", b"{")) > values_max:
            raise FormatError(key, "the JSON text has too many values")

        def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
            fields = dict(pairs)
            if len(fields) != len(pairs):
                raise FormatError(key, "the JSON text contains a field twice")
            return fields

        try:
            return cls(key, json.loads(text.decode("ascii"), object_pairs_hook=unique))
        except (ValueError, RecursionError) as exc:
            raise FormatError(key, "the object's text is not valid JSON") from exc

    def integer(self, name: str, low: int = 0, high: int = INTEGER_MAX) -> int:
        """Return the integer in a field; it must satisfy ``low <= number <= high``."""
        value = self._take(name)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(name)
        return value

    def boolean(self, name: str) -> bool:
        """Return the boolean value of a field."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise self._wrong(name)
        return value

    def text(self, name: str, max_chars: int) -> str:
        """Return the printable text of a field, which may be empty."""
        value = self._take(name)
        if not isinstance(value, str) or len(value) > max_chars or not value.isprintable():
            raise self._wrong(name)
        return value

    def hexadecimal(self, name: str, length_bytes: int) -> str:
        """Return the lower-case hexadecimal text of a field; it encodes *length_bytes* bytes."""
        value = self.text(name, 2 * length_bytes)
        if len(value) != 2 * length_bytes or _HEX.fullmatch(value) is None:
            raise self._wrong(name)
        return value

    def matching(self, name: str, pattern: re.Pattern[str]) -> str:
        """Return the text of a field; *pattern* must match the whole text."""
        value = self._take(name)
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise self._wrong(name)
        return value

    def optional(self, name: str, get: Callable[[str], _T]) -> _T | None:
        """Return None if the field is null, otherwise the result of ``get(name)``."""
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return get(name)

    def inner(self, name: str) -> "Fields":
        """Return the fields of the JSON object that is the value of field *name*."""
        return Fields(self._key, self._take(name))

    def array(self, name: str, max_items: int) -> list[object]:
        """Return the array of a field, which may be empty, without checking its items."""
        value = self._take(name)
        if not isinstance(value, list) or len(value) > max_items:
            raise self._wrong(name)
        return value

    def finish(self) -> None:
        """Raise FormatError if the object has a field that no getter has read.

        Raises:
            FormatError: the object has an unknown field.
        """
        if self._left:
            raise FormatError(self._key, f"the object has an unknown field {min(self._left)!r}")

    def _take(self, name: str) -> object:
        if name not in self._left:
            raise FormatError(self._key, f"the field {name!r} is missing")
        return self._left.pop(name)

    def _wrong(self, name: str) -> FormatError:
        return FormatError(self._key, f"the field {name!r} has an invalid value")
