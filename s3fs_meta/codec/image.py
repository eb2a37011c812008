"""Images: copies of the metadata database in the bucket, as pieces and a manifest that lists them.

Owns: the manifest's fields, the names of manifests and pieces, the hashes that link images.
Does not know: SQLite, stores, when an image is written.
Keeps: lengths and hashes in a manifest cover every byte of its database, so swapped, missing and
foreign pieces are detected. A manifest lists each piece once, in order, and names the
previous image.
Design: docs/design/format.md, "Image".

    image/<txg>-<epoch>-<random>/manifest      this module, in an envelope
    image/<txg>-<epoch>-<random>/<number>      a run of database bytes, in an envelope
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from blake3 import blake3

from s3fs_meta.codec import envelope
from s3fs_meta.codec.fields import INTEGER_MAX, VALUES_MAX, Fields, dump
from s3fs_meta.codec.keyring import HASH_BYTES, Keyring
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import (
    ENVELOPE_BYTES_MAX,
    IMAGE_PIECE_BYTES,
    IMAGE_PIECES_MAX,
    PAGE_BYTES_MAX,
    PAGE_BYTES_MIN,
)
from s3fs_meta.model import Epoch, ObjectKey, Txg

VERSION: Final = 2
NO_HASH: Final = "0" * (2 * HASH_BYTES)  # value of a hash field that refers to no object
RANDOM_BYTES: Final = 8  # number of random bytes in an image's name
TXG_DIGITS: Final = 12  # minimum digits of a txg in a name; up to 10^12 txgs are listed in order

_MANIFEST_KIND: Final = b"manifest"
_PIECE_KIND: Final = b"piece"
PREFIX: Final = "image/"
_PREFIX: Final = r"image/([0-9]{12}|[1-9][0-9]{12,18})-(0|[1-9][0-9]{0,18})-([0-9a-f]{16})"
_MANIFEST_KEY: Final = re.compile(_PREFIX + "/manifest", re.ASCII)
PIECE_DIGITS: Final = 6  # number of digits of a piece number in an object key
_PIECE_KEY: Final = re.compile(_PREFIX + f"/([0-9]{{{PIECE_DIGITS}}})", re.ASCII)
_HASH: Final = re.compile(f"[0-9a-f]{{{2 * HASH_BYTES}}}", re.ASCII)
UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
PIECE_ENCODED_BYTES_MAX: Final = IMAGE_PIECE_BYTES + envelope.OVERHEAD_BYTES
_PIECE_JSON_BYTES: Final = 200  # maximum size of one piece entry in a manifest
_VALUES_MAX: Final = 4 * IMAGE_PIECES_MAX + VALUES_MAX

assert IMAGE_PIECES_MAX <= 10**PIECE_DIGITS, "a piece number must have at most PIECE_DIGITS digits"
assert IMAGE_PIECES_MAX * _PIECE_JSON_BYTES < ENVELOPE_BYTES_MAX, (
    "a manifest must fit into one envelope"
)
assert IMAGE_PIECE_BYTES <= ENVELOPE_BYTES_MAX, "a piece must fit into one envelope"


class ImageName(NamedTuple):
    """The parts of an image's name: txg, epoch and random digits."""

    txg: Txg
    epoch: Epoch
    random: str  # random part of the image's name: 16 hexadecimal digits


class Piece(NamedTuple):
    """A reference to an image piece, which contains one range of the database's bytes."""

    key: ObjectKey
    plain_bytes: int
    hash: str  # content_hash of the database bytes in this piece


class ManifestRef(NamedTuple):
    """A reference to a manifest: the key and the content hash of the manifest's object."""

    key: ObjectKey
    hash: str = ""  # content_hash of the manifest; if empty, any authentic manifest is accepted


@dataclass(frozen=True)
class Manifest:
    """The fields of a manifest, which describes one image of the metadata database."""

    txg: Txg  # the last txg whose changes the image contains
    epoch: Epoch  # the epoch of the writer that made the image
    uuid: str  # identifier of the filesystem
    schema_version: int
    page_size: int
    database_bytes: int  # sum of plain_bytes over all pieces
    created_ns: int  # creation time of the image; only shown to users
    previous: ManifestRef | None  # the image before this one, if it is usable and of the same chain
    pieces: tuple[Piece, ...]  # the pieces in order; at least one
    inodes: int  # number of inodes; only shown to users
    file_bytes: int  # total size of all regular files; only shown to users
    changelog: str = NO_HASH  # content_hash of the changelog for *txg*; NO_HASH if there is none


def image_prefix(txg: Txg, epoch: Epoch, random_bytes: bytes) -> str:
    """Return the prefix shared by the object keys of one image, without the final slash.

    The caller generates 8 new *random_bytes* for each image, so that two attempts to write an image
    never share a name.
    """
    assert len(random_bytes) == RANDOM_BYTES, "the name of an image contains 8 random bytes"
    return f"image/{txg:0{TXG_DIGITS}d}-{epoch}-{random_bytes.hex()}"


def manifest_key(txg: Txg, epoch: Epoch, random_bytes: bytes) -> ObjectKey:
    """Return the object key of a new image's manifest."""
    return ObjectKey(f"{image_prefix(txg, epoch, random_bytes)}/manifest")


def piece_key(prefix: str, number: int) -> ObjectKey:
    """Return the object key of piece *number*, counted from 0, of the image with *prefix*."""
    assert 0 <= number < IMAGE_PIECES_MAX, "the piece number is out of range"
    return ObjectKey(f"{prefix}/{number:0{PIECE_DIGITS}d}")


def parse_manifest_key(key: str) -> ImageName | None:
    """Return the parts of the image name in *key*, or None if *key* is not a manifest's key."""
    return _image_name(_MANIFEST_KEY.fullmatch(key))


def parse_piece_key(key: str) -> ImageName | None:
    """Return the parts of the image name in *key*, or None if *key* is not a piece's key."""
    return _image_name(_PIECE_KEY.fullmatch(key))


def image_of(key: ObjectKey) -> str:
    """Return an image's key prefix from the key of its manifest or of a piece."""
    return key.rpartition("/")[0]


def content_hash(data: bytes | memoryview) -> str:
    """Return the unkeyed BLAKE3 hash of an object, or of a piece's content, in hexadecimal.

    The hashes that link changelogs, parts, levels and images are of this kind.
    """
    return blake3(data).hexdigest()


def encode(manifest: Manifest, key: ObjectKey, keyring: Keyring) -> bytes:
    """Encode a manifest; return the bytes of the object *key*.

    Raises:
        FormatError: a field is out of range, which is a bug; the object must not be stored.
    """
    payload = dump_manifest(manifest)
    if _parse(key, payload) != manifest:
        raise FormatError(
            key, "bug: the encoded manifest decodes to other values, so it was not stored"
        )
    return envelope.encode(_MANIFEST_KIND, key, payload, keyring)


def decode(key: ObjectKey, data: bytes | memoryview, keyring: Keyring) -> Manifest:
    """Return the manifest in the object *key*.

    Raises:
        NewerFormatError: the object has a version that this program does not know.
        FormatError: the object is corrupt, or describes a different image than *key* names.
    """
    return _parse(key, envelope.decode(_MANIFEST_KIND, key, data, keyring))


def encode_piece(key: ObjectKey, content: bytes | memoryview, keyring: Keyring) -> bytes:
    """Encode a piece of at most IMAGE_PIECE_BYTES bytes; return the bytes of the object *key*."""
    assert 0 < len(content) <= IMAGE_PIECE_BYTES, "a piece has 1 to IMAGE_PIECE_BYTES bytes"
    return envelope.encode(_PIECE_KIND, key, content, keyring)


def decode_piece(piece: Piece, data: bytes | memoryview, keyring: Keyring) -> bytes:
    """Decode the object of *piece*; return the database bytes in it.

    A program that changes the format of pieces also raises the version of manifests. So if this
    program can read the manifest, a listed piece with an unknown version is damaged.

    Raises:
        FormatError: the object is corrupt, or its content does not match the manifest.
    """
    try:
        content = envelope.decode(_PIECE_KIND, piece.key, data, keyring)
    except NewerFormatError as exc:
        raise FormatError(
            piece.key,
            f"the piece has an unknown version, although its manifest has a known one: {exc.what}",
        ) from exc
    if len(content) != piece.plain_bytes or content_hash(content) != piece.hash:
        raise FormatError(
            piece.key, "the content of the piece does not match the hash in its manifest"
        )
    return content


def decode_unlisted_piece(key: ObjectKey, data: bytes | memoryview, keyring: Keyring) -> bytes:
    """Decode a piece whose manifest is missing or unreadable; return its database bytes.

    Raises:
        FormatError: the object is damaged, or is not a piece of this filesystem.
    """
    return envelope.decode(_PIECE_KIND, key, data, keyring)


def piece_number(key: ObjectKey) -> int:
    """Return the number in a piece's key; it determines the piece's offset in the database."""
    return int(key[-PIECE_DIGITS:])


def piece_sizes(database_bytes: int) -> list[int]:
    """Return the size of each piece into which an image splits a database."""
    full, rest = divmod(database_bytes, IMAGE_PIECE_BYTES)
    return [IMAGE_PIECE_BYTES] * full + ([rest] if rest else [])


def require_places(manifest: Manifest, key: ObjectKey) -> None:
    """Raise FormatError if the pieces do not cover the database without gaps.

    Raises:
        FormatError: a piece other than the last is not full.
    """
    for number, piece in enumerate(manifest.pieces[:-1]):
        if piece.plain_bytes != IMAGE_PIECE_BYTES:
            raise FormatError(key, f"piece {number} is not full: {piece.plain_bytes} bytes")


def dump_manifest(manifest: Manifest) -> bytes:
    """Return the JSON payload of a manifest."""
    return dump(
        {
            "version": VERSION,
            "txg": manifest.txg,
            "epoch": manifest.epoch,
            "uuid": manifest.uuid,
            "schema_version": manifest.schema_version,
            "page_size": manifest.page_size,
            "database_bytes": manifest.database_bytes,
            "created_ns": manifest.created_ns,
            "previous": manifest.previous and list(manifest.previous),
            "pieces": [list(piece) for piece in manifest.pieces],
            "inodes": manifest.inodes,
            "file_bytes": manifest.file_bytes,
            "changelog": manifest.changelog,
        }
    )


def _parse(key: ObjectKey, payload: bytes) -> Manifest:
    fields = Fields.parse(key, payload, values_max=_VALUES_MAX)
    version = fields.integer("version", 1)
    if version > VERSION:
        raise NewerFormatError(key, f"the manifest version {version} is unknown")
    manifest = Manifest(
        txg=Txg(fields.integer("txg")),
        epoch=Epoch(fields.integer("epoch")),
        uuid=fields.matching("uuid", UUID),
        schema_version=fields.integer("schema_version", 1),
        page_size=fields.integer("page_size", PAGE_BYTES_MIN, PAGE_BYTES_MAX),
        database_bytes=fields.integer("database_bytes", 1),
        created_ns=fields.integer("created_ns"),
        previous=fields.optional("previous", lambda name: manifest_ref(key, fields, name)),
        pieces=_pieces(key, fields.array("pieces", IMAGE_PIECES_MAX)),
        inodes=fields.integer("inodes"),
        file_bytes=fields.integer("file_bytes"),
        changelog=NO_HASH if version == 1 else fields.hexadecimal("changelog", HASH_BYTES),
    )
    fields.finish()
    _check(key, manifest)
    return manifest


def _check(key: ObjectKey, manifest: Manifest) -> None:
    """Raise FormatError if the fields of a manifest contradict each other or the object's name."""
    name = parse_manifest_key(key)
    if name is None or (name.txg, name.epoch) != (manifest.txg, manifest.epoch):
        raise FormatError(key, "the txg or the epoch in the manifest differs from its name")
    if manifest.previous is not None and manifest.previous.key == key:
        raise FormatError(key, "the manifest refers to itself as the previous image")
    if manifest.page_size & (manifest.page_size - 1):
        raise FormatError(key, "the page size of the database is not a power of two")
    if manifest.database_bytes % manifest.page_size:
        raise FormatError(key, "the database size is not a multiple of the page size")
    if sum(piece.plain_bytes for piece in manifest.pieces) != manifest.database_bytes:
        raise FormatError(key, "the pieces do not add up to the database size")


def manifest_ref(key: ObjectKey, fields: Fields, name: str) -> ManifestRef:
    """Return the reference to a manifest in a field, an array of key and hash."""
    inner = named_fields(key, fields.array(name, 2), ManifestRef._fields)
    return ManifestRef(
        ObjectKey(inner.matching("key", _MANIFEST_KEY)), inner.hexadecimal("hash", HASH_BYTES)
    )


def _pieces(key: ObjectKey, items: list[object]) -> tuple[Piece, ...]:
    """Return the pieces of a manifest; raise FormatError if their numbers are not 0, 1, 2, ...

    Without this check, a hostile manifest could make its reader fetch one object many times.
    The loop stops at the first wrong number, because a hostile manifest may list many pieces.
    """
    found = []
    for number, item in enumerate(items):
        piece = _piece(key, item)
        if int(piece.key[-PIECE_DIGITS:]) != number:
            raise FormatError(
                key, f"the manifest lists piece {number} with the wrong name {piece.key}"
            )
        found.append(piece)
    return tuple(found)


def _piece(key: ObjectKey, item: object) -> Piece:
    if not isinstance(item, list) or len(item) != len(Piece._fields):
        raise FormatError(key, "a piece is not an array of key, plain_bytes and hash")
    name, plain_bytes, digest = item
    if not isinstance(name, str) or _PIECE_KEY.fullmatch(name) is None:
        raise FormatError(key, "the key of a piece is malformed")
    if type(plain_bytes) is not int or not 0 < plain_bytes <= IMAGE_PIECE_BYTES:
        raise FormatError(key, f"the size of piece {name} is out of range")
    if not isinstance(digest, str) or _HASH.fullmatch(digest) is None:
        raise FormatError(key, f"the hash of piece {name} is malformed")
    return Piece(ObjectKey(name), plain_bytes, digest)


def named_fields(key: ObjectKey, item: object, names: tuple[str, ...]) -> Fields:
    """Return the items of a JSON array as fields; raise FormatError if their number is wrong."""
    if not isinstance(item, list) or len(item) != len(names):
        raise FormatError(key, f"a JSON array does not consist of the items {', '.join(names)}")
    return Fields(key, dict(zip(names, item, strict=True)))


def _image_name(match: re.Match[str] | None) -> ImageName | None:
    if match is None or max(int(match[1]), int(match[2])) > INTEGER_MAX:
        return None
    return ImageName(Txg(int(match[1])), Epoch(int(match[2])), match[3])
