"""Kept points: named points in time that retention does not delete, one object for each.

Owns: the fields of a kept point, and its object key. Does not know: which objects a kept point
needs (``sync.history.kept.pins``), who may keep or drop a point (``sync.administration.keeping``).
Keeps: an object can be decoded only under its own key, and only if this key matches the point's
name and txg.
Design: docs/design/format.md, "Kept point".

    kept/<txg>-<hash of the name>-<random>     in an envelope, create-only

The hash is keyed, so an encrypted bucket does not reveal names. A point is found by its name with
one listing and one request. The random digits make every key unique, so a delayed DELETE request
never removes a later point of the same name.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from s3fs_meta.codec import envelope
from s3fs_meta.codec import image as image_codec
from s3fs_meta.codec.changelog import NUMBER_MAX, TXG
from s3fs_meta.codec.fields import Fields, dump
from s3fs_meta.codec.image import TXG_DIGITS, UUID, ManifestRef
from s3fs_meta.codec.keyring import HASH_BYTES, Keyring
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import KEPT_NAME_CHARS_MAX, KEPT_PAYLOAD_BYTES_MAX
from s3fs_meta.model import Epoch, ObjectKey, PackId, Txg, is_kept_name

VERSION: Final = 1
PREFIX: Final = "kept/"
NAME_HASH_BYTES: Final = 16
RANDOM_BYTES: Final = 8
ENCODED_BYTES_MAX: Final = KEPT_PAYLOAD_BYTES_MAX + envelope.OVERHEAD_BYTES

_KIND: Final = b"kept"
_KEY: Final = re.compile(f"{PREFIX}{TXG}-([0-9a-f]{{32}})-([0-9a-f]{{16}})", re.ASCII)


class KeptName(NamedTuple):
    """The parts of a kept-point object's key."""

    txg: Txg
    name_hash: str


@dataclass(frozen=True)
class KeptPoint:
    """One kept point: a named txg, and the fields that determine which objects it needs."""

    key: ObjectKey
    name: str  # a name that ``is_kept_name`` allows
    uuid: str  # identifier of the filesystem
    txg: Txg
    hash: str  # content_hash of the changelog for *txg*
    created_ns: int  # time at which the txg was cut
    kept_ns: int  # time at which the user kept the point
    epoch: Epoch  # epoch of the changelog for *txg*; no pack from a later epoch is needed
    next_pack: PackId  # upper bound: every pack that the txg needs has a smaller number
    image: ManifestRef  # the image from which a restore starts
    auto: bool = False  # True if "keep --expire" may drop the point

    @property
    def image_txg(self) -> Txg:
        """Return the txg of the image from which a restore starts."""
        name = image_codec.parse_manifest_key(self.image.key)
        assert name is not None, "decode must have checked the key"
        return name.txg


def name_hash(name: str, keyring: Keyring) -> str:
    """Return the keyed hash that replaces the name of a kept point in its object key."""
    return keyring.checksum(b"kept point", name.encode()).hex()[: 2 * NAME_HASH_BYTES]


def prefix_of(txg: Txg) -> str:
    """Return the key prefix of all kept points with one txg."""
    return f"{PREFIX}{txg:0{TXG_DIGITS}d}-"


def new_key(txg: Txg, name: str, keyring: Keyring, random_bytes: bytes) -> ObjectKey:
    """Return the key of a new kept point; the caller generates 8 *random_bytes* for each key."""
    assert len(random_bytes) == RANDOM_BYTES, "the key of a kept point contains 8 random bytes"
    return ObjectKey(f"{prefix_of(txg)}{name_hash(name, keyring)}-{random_bytes.hex()}")


def parse_key(key: str) -> KeptName | None:
    """Return the parts of a kept point's key, or None if *key* has a different form."""
    match = _KEY.fullmatch(key)
    if match is None or not 0 < int(match[1]) <= NUMBER_MAX:
        return None
    return KeptName(Txg(int(match[1])), match[2])


def encode(point: KeptPoint, keyring: Keyring) -> bytes:
    """Return the bytes of a kept point's object.

    Raises:
        FormatError: a field is out of range, which is a bug; the object must not be stored.
    """
    fields = {
        "version": VERSION,
        "name": point.name,
        "uuid": point.uuid,
        "txg": point.txg,
        "hash": point.hash,
        "created_ns": point.created_ns,
        "kept_ns": point.kept_ns,
        "epoch": point.epoch,
        "next_pack": point.next_pack,
        "image": list(point.image),
        "auto": point.auto,
    }
    payload = dump(fields)
    assert len(payload) <= KEPT_PAYLOAD_BYTES_MAX, "decode would refuse such a large payload"
    data = envelope.encode(_KIND, point.key, payload, keyring)
    if decode(point.key, data, keyring) != point:
        raise FormatError(
            point.key, "bug: the encoded kept point decodes to other values, so it was not stored"
        )
    return data


def decode(key: ObjectKey, data: bytes | memoryview, keyring: Keyring) -> KeptPoint:
    """Return the kept point in the object *key*.

    Raises:
        NewerFormatError: a newer program wrote the object.
        FormatError: the object is corrupt, was written under a different key or by another
            filesystem, or its key does not match its name and txg.
    """
    if len(data) > ENCODED_BYTES_MAX:
        raise FormatError(key, f"the object is too large for a kept point: {len(data)} bytes")
    payload = envelope.decode(_KIND, key, data, keyring)
    if len(payload) > KEPT_PAYLOAD_BYTES_MAX:
        raise FormatError(key, f"the payload is too large for a kept point: {len(payload)} bytes")
    fields = Fields.parse(key, payload)
    version = fields.integer("version", 1)
    if version != VERSION:
        raise NewerFormatError(key, f"the kept point version {version} is unknown")
    point = KeptPoint(
        key=key,
        name=fields.text("name", KEPT_NAME_CHARS_MAX),
        uuid=fields.matching("uuid", UUID),
        txg=Txg(fields.integer("txg", 1, NUMBER_MAX)),
        hash=fields.hexadecimal("hash", HASH_BYTES),
        created_ns=fields.integer("created_ns"),
        kept_ns=fields.integer("kept_ns"),
        epoch=Epoch(fields.integer("epoch")),
        next_pack=PackId(fields.integer("next_pack", 1)),
        image=image_codec.manifest_ref(key, fields, "image"),
        auto=fields.boolean("auto"),
    )
    fields.finish()
    _check(key, point, keyring)
    return point


def _check(key: ObjectKey, point: KeptPoint, keyring: Keyring) -> None:
    """Raise FormatError if the fields of a kept point contradict each other or the object's key."""
    if not is_kept_name(point.name):
        raise FormatError(key, "the object contains an invalid name for a kept point")
    image = image_codec.parse_manifest_key(point.image.key)
    if image is None or image.txg > point.txg:
        raise FormatError(key, "the kept point's image has a later txg, or an invalid name")
    named = parse_key(key)
    if named is None or named != (point.txg, name_hash(point.name, keyring)):
        raise FormatError(
            key, "the object's name belongs to a kept point with another txg or another name"
        )
