"""Packs: objects that each contain many blocks and an index of these blocks.

Owns: records, index and trailer of a pack; the names of packs.
Does not know: which blocks belong together, rows, stores.
Keeps: every record can be read alone, from its own bytes. The index is enough to rebuild, for each
block, its row of ``blocks`` and one row of ``block_map``, as they were when the block was sealed.
Design: docs/design/format.md, "Pack", defines the bytes and explains the chosen sizes.

    record | record | ... | index record | trailer

A *record* is compressed data (``compression``). On an encrypted filesystem it is 8 bytes of salt,
then AES-GCM of the compressed data. The salt is the same in all records of a pack.

Nonces. The encryption key of a pack is derived from its name and the salt. A name contains 128
random bits and is never used twice. If a caller uses a name twice, the 64 random bits of the salt
still give the two packs different keys. The nonce is the offset of the record: records do not
overlap, so no offset occurs twice. A record that was moved within its pack, or to another pack,
cannot be decrypted.
"""

import os
import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from s3fs_meta.codec.compression import Compressor, DecompressionError, decompress
from s3fs_meta.codec.keyring import HASH_BYTES, TAG_BYTES, Keyring, nonce
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import (
    BLOCK_BYTES_MAX,
    PACK_BLOCKS_MAX,
    PACK_BYTES_MAX,
    PACK_BYTES_TARGET,
)
from s3fs_meta.memory_allocator import new_buffer
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino, ObjectKey

VERSION: Final = 1
SALT_BYTES: Final = 8
RANDOM_BYTES: Final = 16  # number of random bytes in a pack's name

_MAGIC: Final = b"S3FSPACK"
_ENCRYPTED: Final = 1  # flag of a pack with encrypted records; other flags are not allowed
# trailer fields: size of the index record, number of entries, version, flags
FIELDS: Final = struct.Struct(">IIHH")
# fields of an entry: block, ino, block_index, plain bytes, stored bytes, hash
ENTRY: Final = struct.Struct(">QQQII32s")
_NUMBER_MAX: Final = (1 << 63) - 1  # largest integer that SQLite can store
_KEY: Final = re.compile(r"pack/([0-9a-f]{2})/(0|[1-9][0-9]{0,18})-(\1[0-9a-f]{30})", re.ASCII)

TRAILER_BYTES: Final = FIELDS.size + HASH_BYTES + len(_MAGIC)

assert PACK_BLOCKS_MAX * (ENTRY.size + 1) + TRAILER_BYTES < PACK_BYTES_MAX - PACK_BYTES_TARGET - (
    BLOCK_BYTES_MAX
), "a pack that is not full must have room for one more block and for its index"


class PackEntry(NamedTuple):
    """One packed block: its location and hash, and its position in a file when it was packed."""

    block: BlockId
    hash: bytes  # keyring.block_hash of the block's content
    plain_bytes: int
    offset: int
    stored_bytes: int
    ino: Ino
    block_index: BlockIndex


class Pack(NamedTuple):
    """A finished pack, ready for upload under its key."""

    key: ObjectKey
    data: memoryview  # all bytes of the object; read-only
    entries: list[PackEntry]  # the index, sorted by offset; never empty


def new_key(epoch: Epoch, random_bytes: bytes) -> ObjectKey:
    """Return the object key of a new pack.

    The caller generates 16 new *random_bytes* for each pack, so that no name is used twice.
    """
    assert len(random_bytes) == RANDOM_BYTES, "the name of a pack contains 16 random bytes"
    name = random_bytes.hex()
    return ObjectKey(f"pack/{name[:2]}/{epoch}-{name}")


def parse_key(key: str) -> Epoch | None:
    """Return the epoch in which a pack was written, or None if *key* is not the key of a pack."""
    match = _KEY.fullmatch(key)
    if match is None or int(match[2]) > _NUMBER_MAX:
        return None
    return Epoch(int(match[2]))


class PackWriter:
    """Collects blocks into one pack.

    The writer keeps the complete pack in memory, at most PACK_BYTES_MAX. Only one thread at a time
    may use the writer. The memory is mapped once, because copying a growing buffer would hold the
    interpreter lock and block the event loop for tens of milliseconds.
    """

    def __init__(
        self,
        key: ObjectKey,
        keyring: Keyring,
        compression: str,
        *,
        bytes_target: int = PACK_BYTES_TARGET,
    ) -> None:
        assert bytes_target <= PACK_BYTES_TARGET, "a larger target may leave no room for a block"
        assert parse_key(key) is not None, "the key of a pack must come from new_key"
        self._key = key
        self._bytes_target = bytes_target
        self._keyring = keyring
        self._compressor = Compressor.for_name(compression)
        self._salt = os.urandom(SALT_BYTES) if keyring.encrypted else b""
        self.pack_cipher = pack_cipher(keyring, key, self._salt) if keyring.encrypted else None
        self._buffer = new_buffer(PACK_BYTES_MAX)
        self._size_bytes = 0
        self._entries: list[PackEntry] = []

    @property
    def key(self) -> ObjectKey:
        """Return the object key that the pack will have."""
        return self._key

    @property
    def size_bytes(self) -> int:
        """Return the total size of the records that were added so far."""
        return self._size_bytes

    @property
    def full(self) -> bool:
        """Return whether the pack is full; a full pack accepts no more blocks."""
        return self.size_bytes >= self._bytes_target or len(self._entries) >= PACK_BLOCKS_MAX

    def add(
        self,
        block: BlockId,
        ino: Ino,
        block_index: BlockIndex,
        hash: bytes,  # noqa: A002 - same name as the field of PackEntry
        data: bytes | memoryview,
    ) -> None:
        """Append one block; the caller may reuse the buffer *data* afterwards.

        *hash* is ``keyring.block_hash(data)``. This method computes the hash again, because a block
        with a wrong hash could never be read.
        """
        assert not self.full, "a full pack accepts no more blocks"
        assert 0 < len(data) <= BLOCK_BYTES_MAX, "a block must have from 1 to BLOCK_BYTES_MAX bytes"
        assert self._keyring.block_hash(data) == hash, "the block changed after it was hashed"
        offset = self.size_bytes
        stored_bytes = self._append(data, b"block")
        self._entries.append(
            PackEntry(block, hash, len(data), offset, stored_bytes, ino, block_index)
        )

    def finish(self) -> Pack:
        """Return the pack, which has at least one block; the writer must not be used afterwards.

        Raises:
            FormatError: decoding the new index gives different fields, because of a bug or bad
                memory; the caller must not store the pack.
        """
        assert self._entries, "a pack must not be empty"
        index = b"".join(encode_entry(entry) for entry in self._entries)
        index_at = self.size_bytes
        index_bytes = self._append(index, b"index")
        flags = _ENCRYPTED if self._keyring.encrypted else 0
        fields = FIELDS.pack(index_bytes, len(self._entries), VERSION, flags)
        record = self._buffer[index_at : self._size_bytes]
        checksum = trailer_checksum(self._keyring, self._key, record, fields)
        self._write(fields + checksum + _MAGIC)
        data = self._buffer[: self._size_bytes].toreadonly()
        if read_index(self._keyring, self._key, data[index_at:], len(data)) != self._entries:
            raise FormatError(
                self._key,
                "bug: the encoded index decodes to other values, so the pack was not stored",
            )
        return Pack(self._key, data, self._entries)

    def _append(self, data: bytes | memoryview, kind: bytes) -> int:
        """Append one record to the pack; return the record's length."""
        packed = self._compressor.compress(data)
        if self.pack_cipher is None:
            return self._write(packed)
        text = self.pack_cipher.encrypt(nonce(self.size_bytes), packed, kind)
        return self._write(self._salt) + self._write(text)

    def _write(self, data: bytes) -> int:
        begin, self._size_bytes = self._size_bytes, self._size_bytes + len(data)
        self._buffer[begin : self._size_bytes] = data
        return len(data)


def open_block(
    keyring: Keyring,
    key: ObjectKey,
    stored: bytes | memoryview,
    offset: int,
    plain_bytes: int,
    hash: bytes,  # noqa: A002 - the name of the field in PackEntry
) -> bytes:
    """Decode one block; *stored* is exactly the bytes of its record.

    The record is the range ``[offset, offset + stored_bytes)`` of the object *key*.

    Raises:
        FormatError: the record is corrupt, or its content does not have the hash *hash*.
    """
    return bytes(view_block(keyring, key, stored, offset, plain_bytes, hash))


def view_block(
    keyring: Keyring,
    key: ObjectKey,
    stored: bytes | memoryview,
    offset: int,
    plain_bytes: int,
    hash: bytes,  # noqa: A002 - the name of the field in PackEntry
) -> bytes | memoryview:
    """Decode one block as ``open_block`` does, but return a view of *stored* if possible.

    If the block is neither compressed nor encrypted, the result is a view of *stored*. While the
    caller uses the view, *stored* must not change.
    """
    if not 0 < plain_bytes <= BLOCK_BYTES_MAX:
        raise FormatError(
            key, f"the block at offset {offset} has an invalid length: {plain_bytes} bytes"
        )
    content = _open_record(keyring, key, stored, offset, plain_bytes, b"block")
    if keyring.block_hash(content) != hash:
        raise FormatError(key, f"the block at offset {offset} does not match its hash")
    return content


def index_tail_bytes(key: ObjectKey, tail: bytes | memoryview, object_bytes: int) -> int:
    """Return the length of the index and trailer at the end of a pack.

    Reading the index takes at most two range reads. The first reads the last ``min(PACK_TAIL_BYTES,
    object_bytes)`` bytes. The second is needed only if this function returns a larger length.

    Raises:
        FormatError: *tail* does not contain the last bytes of a pack.
    """
    return _parse_trailer(key, tail, object_bytes).tail_bytes


def read_index(
    keyring: Keyring, key: ObjectKey, tail: bytes | memoryview, object_bytes: int
) -> list[PackEntry]:
    """Return the index entries of a pack, at least one, sorted by offset.

    *tail* contains at least the last ``index_tail_bytes`` bytes of the object.

    Raises:
        NewerFormatError: the pack has a version or flags that this program does not know. If damage
            to these bytes is the only reason, FormatError is raised instead.
        FormatError: the pack is corrupt, truncated or extended, or was written under another name
            or by another filesystem.
    """
    trailer = _parse_trailer(key, tail, object_bytes)
    if len(tail) < trailer.tail_bytes:
        raise FormatError(key, f"the last {len(tail)} bytes do not contain the complete index")
    view = memoryview(tail)[len(tail) - trailer.tail_bytes :]
    record = view[: trailer.index_bytes]
    if not trailer.is_known:
        _refuse_version(keyring, key, record, trailer)
    if bool(trailer.flags & _ENCRYPTED) != keyring.encrypted:
        raise FormatError(key, "either the pack or its filesystem is encrypted, but not both")
    if trailer.checksum != trailer_checksum(keyring, key, record, trailer.fields):
        raise FormatError(key, "the index of the pack has a wrong checksum")
    index_at = object_bytes - trailer.tail_bytes
    index_plain_bytes = trailer.entries * ENTRY.size
    index = _open_record(keyring, key, record, index_at, index_plain_bytes, b"index")
    return _parse_entries(key, index, index_at)


def open_pack(
    keyring: Keyring, key: ObjectKey, data: bytes | memoryview
) -> Iterator[tuple[PackEntry, bytes]]:
    """Yield every block of a complete pack with its verified content, sorted by offset.

    Together the blocks, the index and the trailer cover every byte of the object.

    Raises:
        FormatError: the index, or the next block, is corrupt.
    """
    view = memoryview(data)
    for entry in read_index(keyring, key, view, len(view)):
        stored = view[entry.offset : entry.offset + entry.stored_bytes]
        yield (
            entry,
            open_block(keyring, key, stored, entry.offset, entry.plain_bytes, entry.hash),
        )


class _Trailer(NamedTuple):
    index_bytes: int
    entries: int
    version: int
    flags: int
    fields: bytes
    checksum: bytes

    @property
    def tail_bytes(self) -> int:
        return self.index_bytes + TRAILER_BYTES

    @property
    def is_known(self) -> bool:
        return self.version == VERSION and not self.flags & ~_ENCRYPTED


def _parse_trailer(key: ObjectKey, tail: bytes | memoryview, object_bytes: int) -> _Trailer:
    if len(tail) < TRAILER_BYTES or bytes(tail[-len(_MAGIC) :]) != _MAGIC:
        raise FormatError(key, "the object does not end with the magic of a pack")
    if not len(tail) <= object_bytes <= PACK_BYTES_MAX:
        raise FormatError(
            key, f"the object has an impossible size for a pack: {object_bytes} bytes"
        )
    raw = bytes(tail[-TRAILER_BYTES:])
    fields, checksum = raw[: FIELDS.size], raw[FIELDS.size : -len(_MAGIC)]
    index_bytes, entries, version, flags = FIELDS.unpack(fields)
    trailer = _Trailer(index_bytes, entries, version, flags, fields, checksum)
    if 0 < entries <= PACK_BLOCKS_MAX and 0 < index_bytes < object_bytes - TRAILER_BYTES:
        return trailer
    if trailer.is_known:
        raise FormatError(
            key, f"the index has an impossible size: {entries} entries in {index_bytes} bytes"
        )
    raise NewerFormatError(key, f"the pack version {version} with flags {flags} is unknown")


def _refuse_version(
    keyring: Keyring, key: ObjectKey, record: memoryview, trailer: _Trailer
) -> NoReturn:
    """Raise the error for a pack of an unknown version.

    Raises:
        FormatError: the pack would be authentic with the current version, so its version or its
            flags are damaged.
        NewerFormatError: the pack would not be authentic with the current version.
    """
    flags = _ENCRYPTED if keyring.encrypted else 0
    fields = FIELDS.pack(trailer.index_bytes, trailer.entries, VERSION, flags)
    if trailer.checksum == trailer_checksum(keyring, key, record, fields):
        raise FormatError(key, "the version or the flags of the pack are damaged")
    raise NewerFormatError(
        key, f"the pack version {trailer.version} with flags {trailer.flags} is unknown"
    )


def _parse_entries(key: ObjectKey, index: bytes | memoryview, index_at: int) -> list[PackEntry]:
    """Parse the index entries. Each record begins where the previous one ends, so none overlap."""
    entries = []
    offset = 0
    rows = ENTRY.iter_unpack(bytes(index))
    for block, ino, block_index, plain_bytes, stored_bytes, digest in rows:
        if max(block, ino, block_index) > _NUMBER_MAX:
            raise FormatError(key, "a number in the index of the pack is out of range")
        if not 0 < plain_bytes <= BLOCK_BYTES_MAX or stored_bytes == 0:
            raise FormatError(key, "a length in the index of the pack is out of range")
        entries.append(
            PackEntry(
                BlockId(block),
                digest,
                plain_bytes,
                offset,
                stored_bytes,
                Ino(ino),
                BlockIndex(block_index),
            )
        )
        offset += stored_bytes
    if offset != index_at:
        raise FormatError(
            key, f"the records of the pack end at byte {offset}, but its index begins at {index_at}"
        )
    return entries


def encode_entry(entry: PackEntry) -> bytes:
    """Return one index entry in its binary form."""
    return ENTRY.pack(
        entry.block,
        entry.ino,
        entry.block_index,
        entry.plain_bytes,
        entry.stored_bytes,
        entry.hash,
    )


def _open_record(
    keyring: Keyring,
    key: ObjectKey,
    stored: bytes | memoryview,
    offset: int,
    plain_bytes: int,
    kind: bytes,
) -> bytes | memoryview:
    packed: bytes | memoryview = stored
    if keyring.encrypted:
        if len(stored) < SALT_BYTES + TAG_BYTES:
            raise FormatError(
                key, f"the record at offset {offset} is too short: {len(stored)} bytes"
            )
        view = memoryview(stored)
        cipher = pack_cipher(keyring, key, bytes(view[:SALT_BYTES]))
        try:
            packed = cipher.decrypt(nonce(offset), view[SALT_BYTES:], kind)
        except InvalidTag as exc:
            raise FormatError(key, f"the record at offset {offset} is not authentic") from exc
    try:
        return decompress(packed, plain_bytes)
    except DecompressionError as exc:
        raise FormatError(
            key, f"the record at offset {offset} cannot be decompressed: {exc}"
        ) from exc


def pack_cipher(keyring: Keyring, key: ObjectKey, salt: bytes) -> AESGCM:
    """Return the cipher for the records in one pack."""
    return keyring.object_cipher(salt, b"s3fs-meta pack 1 " + key.encode("ascii"))


def trailer_checksum(
    keyring: Keyring, key: ObjectKey, index_record: bytes | memoryview, fields: bytes
) -> bytes:
    """Return the checksum of a pack's index and of the trailer fields after the index."""
    return keyring.checksum(b"pack", key.encode("ascii"), index_record, fields)
