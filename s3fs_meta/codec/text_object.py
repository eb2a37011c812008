"""Text objects: small objects in a readable text format.

Owns: the first line with noun and version, the JSON, and the last line with the hash.
Does not know: the fields.
Keeps: a changed, missing or added byte is detected. The checksum has no key, so it detects
corruption but not an attack. If fields must be authentic, the module that owns them ensures this.

    s3fs-meta <noun> <version>
    {...}
    blake3 <64 hexadecimal digits, over everything before this line>
"""

import re
from collections.abc import Mapping
from typing import Final

from blake3 import blake3

from s3fs_meta.codec.fields import Fields, dump
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX

_FIRST: Final = re.compile(rb"s3fs-meta ([a-z]{1,20}) ([1-9][0-9]{0,8})\n")
LAST_BYTES: Final = len(b"blake3 ") + 64 + len(b"\n")


def encode(noun: str, version: int, fields: Mapping[str, object]) -> bytes:
    """Return *fields* as a text object of at most TEXT_OBJECT_BYTES_MAX bytes."""
    body = f"s3fs-meta {noun} {version}\n".encode("ascii") + dump(fields) + b"\n"
    data = body + last_line(body)
    assert len(data) <= TEXT_OBJECT_BYTES_MAX, "decode would refuse such a large text object"
    return data


def version_of(noun: str, key: str, data: bytes | memoryview) -> int:
    """Return the version in the first line of a text object, without verifying the object.

    Raises:
        FormatError: the first line has a different noun, or does not begin a text object.
    """
    first = _FIRST.match(data)
    if first is None or first[1] != noun.encode("ascii"):
        raise FormatError(key, f"the object does not begin with the first line of a {noun}")
    return int(first[2])


def decode(noun: str, version: int, key: str, data: bytes | memoryview) -> Fields:
    """Return the fields of the text object *key*.

    Raises:
        NewerFormatError: the object is intact but its version is not *version*. The first and
            the last line have the same form in all versions.
        FormatError: the object is corrupt, or its first line has a different noun.
    """
    if len(data) > TEXT_OBJECT_BYTES_MAX:
        raise FormatError(key, f"the object is too large for a {noun}: {len(data)} bytes")
    text = bytes(data)
    found = version_of(noun, key, text)
    body, last = text[:-LAST_BYTES], text[-LAST_BYTES:]
    # The checksum is verified first, so that a flipped bit in the version is reported as damage.
    if last != last_line(body):
        raise FormatError(key, "the object has a wrong checksum")
    if found != version:
        raise NewerFormatError(key, f"the {noun} version {found} is unknown")
    return Fields.parse(key, body[body.index(b"\n") + 1 :])


def last_line(body: bytes) -> bytes:
    """Return the last line of a text object: the hash of *body*, which is all lines before it."""
    return f"blake3 {blake3(body).hexdigest()}\n".encode("ascii")
