"""Envelopes: the format that wraps every metadata object except the lease and the superblock.

Owns: the header, compression, and encryption or checksum of metadata objects. A metadata object is
always read as a whole.
Does not know: the meaning of the payload.
Keeps: an object can be decoded only if it is complete and belongs to this filesystem, under the
kind and name for which it was encoded. ``decode`` rejects a plain object of an encrypted
filesystem, and an encrypted object of a plain filesystem.
Design: docs/design/format.md, "Envelope".

    header | AES-GCM of the compressed payload          on an encrypted filesystem
    header | compressed payload | checksum              on a plain filesystem

Nonces. Each object has its own key, derived from the master key and 16 random bytes that ``encode``
generates. Each key encrypts only one message. So the nonce can always be 0: no pair (key, nonce)
occurs twice.
"""

import os
import struct
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag

from s3fs_meta.codec.compression import METHOD_BYTES, Compressor, DecompressionError, decompress
from s3fs_meta.codec.keyring import HASH_BYTES, Keyring, nonce
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import ENVELOPE_BYTES_MAX
from s3fs_meta.model import ObjectKey

VERSION: Final = 1
SALT_BYTES: Final = 16
KIND_BYTES_MAX: Final = 8
LEVEL_DEFAULT: Final = 1

_MAGIC: Final = b"S3FSMETA"
_ENCRYPTED: Final = 1  # flag of an encrypted object; other flags are not allowed
# fields of the header: magic, version, flags, kind, payload bytes, salt
HEADER: Final = struct.Struct(">8sHH8sI16s")
_KIND_AT: Final = len(_MAGIC) + 4  # offset of the field "kind" in the header
# The bytes of an object that contain the salt.
SALT_RANGE: Final = slice(HEADER.size - SALT_BYTES, HEADER.size)
# Maximum difference between the sizes of an object and its payload.
OVERHEAD_BYTES: Final = METHOD_BYTES + HEADER.size + HASH_BYTES
ENCODED_BYTES_MAX: Final = ENVELOPE_BYTES_MAX + OVERHEAD_BYTES
PURPOSE: Final = b"s3fs-meta envelope 1"


def encode(
    kind: bytes,
    key: ObjectKey,
    payload: bytes | memoryview,
    keyring: Keyring,
    *,
    level: int = LEVEL_DEFAULT,
) -> bytes:
    """Wrap *payload*, at most ENVELOPE_BYTES_MAX bytes; return the bytes of the object *key*.

    *kind* is a word of at most 8 ASCII letters; *level* is the compression level of zstd.
    """
    assert kind.isalpha(), "a kind consists of letters"
    assert len(kind) <= KIND_BYTES_MAX, "a kind has at most 8 letters"
    assert len(payload) <= ENVELOPE_BYTES_MAX, "decode would refuse such a large payload"
    flags = _ENCRYPTED if keyring.encrypted else 0
    salt = os.urandom(SALT_BYTES) if keyring.encrypted else bytes(SALT_BYTES)
    header = HEADER.pack(_MAGIC, VERSION, flags, kind, len(payload), salt)
    packed = Compressor.zstd(level).compress(payload)
    if keyring.encrypted:
        cipher = keyring.object_cipher(salt, PURPOSE)
        return header + cipher.encrypt(nonce(0), packed, _context(header, key))
    return b"".join((header, packed, checksum_of(keyring, header, key, packed)))


def is_framed(data: bytes) -> bool:
    """Return whether an object begins with the magic of envelopes; it may still be damaged."""
    return data.startswith(_MAGIC)


def decode(kind: bytes, key: ObjectKey, data: bytes | memoryview, keyring: Keyring) -> bytes:
    """Return the payload of the object *data*, which was read under the name *key*.

    Raises:
        NewerFormatError: the object has a version or flags that this program does not know. If
            damage to these bytes is the only reason, FormatError is raised instead.
        FormatError: the object is corrupt, has a different kind or name, or belongs to another
            filesystem; or either the object or the filesystem is encrypted, but not both.
    """
    view = memoryview(data)
    try:
        header = _parse_header(kind, key, view)
    except NewerFormatError as exc:
        if _is_of_this_version(key, view, keyring):
            raise FormatError(key, "the version or the flags of the envelope are damaged") from exc
        raise
    if header.encrypted != keyring.encrypted:
        raise FormatError(key, "either the object or its filesystem is encrypted, but not both")
    body = view[HEADER.size :]
    packed = (
        _decrypted(key, header, body, keyring)
        if header.encrypted
        else _checked(key, header, body, keyring)
    )
    try:
        return bytes(decompress(packed, header.payload_bytes))
    except DecompressionError as exc:
        raise FormatError(key, f"the payload cannot be decompressed: {exc}") from exc


def require_authentic(key: ObjectKey, data: bytes | memoryview, keyring: Keyring) -> None:
    """Verify that this filesystem wrote the object, of any kind, under the name *key*.

    Raises:
        FormatError: the object is corrupt, or was written under a different name or by another
            filesystem.
    """
    view = memoryview(data)
    kind = bytes(view[_KIND_AT : _KIND_AT + KIND_BYTES_MAX]).rstrip(b"\0")
    decode(kind, key, view, keyring)


class _Header(NamedTuple):
    encrypted: bool
    payload_bytes: int
    salt: bytes
    raw: bytes


def _parse_header(kind: bytes, key: ObjectKey, view: memoryview) -> _Header:
    if len(view) < HEADER.size or bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise FormatError(key, "the object does not begin with the magic of a metadata object")
    if len(view) > ENCODED_BYTES_MAX:
        raise FormatError(key, f"the object is too large for a metadata object: {len(view)} bytes")
    raw = bytes(view[: HEADER.size])
    _, version, flags, stored_kind, payload_bytes, salt = HEADER.unpack(raw)
    if version != VERSION or flags & ~_ENCRYPTED:
        raise NewerFormatError(
            key, f"the envelope has an unknown version {version} or unknown flags {flags}"
        )
    if stored_kind != kind.ljust(KIND_BYTES_MAX, b"\0"):
        raise FormatError(key, f"the object is not of the kind {kind.decode('ascii', 'replace')}")
    if payload_bytes > ENVELOPE_BYTES_MAX:
        raise FormatError(key, f"the payload is too large: {payload_bytes} bytes")
    return _Header(bool(flags & _ENCRYPTED), payload_bytes, salt, raw)


def _is_of_this_version(key: ObjectKey, view: memoryview, keyring: Keyring) -> bool:
    """Return whether the object would be authentic with the current version and valid flags.

    If so, the object was written with the current version, and its version or flags were
    damaged afterwards.
    """
    _, _, _, kind, payload_bytes, salt = HEADER.unpack(view[: HEADER.size])
    flags = _ENCRYPTED if keyring.encrypted else 0
    raw = HEADER.pack(_MAGIC, VERSION, flags, kind, payload_bytes, salt)
    header = _Header(keyring.encrypted, payload_bytes, salt, raw)
    check = _decrypted if keyring.encrypted else _checked
    try:
        check(key, header, view[HEADER.size :], keyring)
    except FormatError:
        return False
    return True


def _decrypted(key: ObjectKey, header: _Header, body: memoryview, keyring: Keyring) -> bytes:
    cipher = keyring.object_cipher(header.salt, PURPOSE)
    try:
        return cipher.decrypt(nonce(0), body, _context(header.raw, key))
    except InvalidTag as exc:
        raise FormatError(key, "the envelope is not authentic") from exc


def _checked(key: ObjectKey, header: _Header, body: memoryview, keyring: Keyring) -> memoryview:
    packed, checksum = body[:-HASH_BYTES], body[-HASH_BYTES:]
    if checksum != checksum_of(keyring, header.raw, key, packed):
        raise FormatError(key, "the envelope has a wrong checksum")
    return packed


def checksum_of(
    keyring: Keyring, header: bytes, key: ObjectKey, packed: bytes | memoryview
) -> bytes:
    """Return the checksum that ends an unencrypted envelope."""
    return keyring.checksum(b"envelope", header, key.encode("ascii"), packed)


def _context(header: bytes, key: ObjectKey) -> bytes:
    """Return the associated data: the header, which has a fixed length, and the object key."""
    return header + key.encode("ascii")
