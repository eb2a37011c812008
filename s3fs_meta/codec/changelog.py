"""Changelogs: objects that form a chain, each with the changes of one transaction group.

Owns: the fields of a changelog, the names of changelogs and their parts, the binary form of
changes and locations. Does not know: SQLite, the content of a changeset, stores, when a txg ends.
Keeps: a changelog records the hash of its predecessor, and can be decoded only under its own txg
number. So a missing, swapped, truncated, forged or reordered changelog is detected. The hashes of
the parts are also in the changelog.
Design: docs/design/format.md, "Changelog".

    changelog/<txg>                                  this module, in an envelope; create-only
    changelog-part/<txg>-<epoch>-<random>/<number>   changes that do not fit into the changelog
"""

import enum
import functools
import itertools
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from s3fs_meta.codec import envelope
from s3fs_meta.codec.fields import INTEGER_MAX, VALUES_MAX, Fields, dump
from s3fs_meta.codec.image import (
    TXG_DIGITS,
    UUID,
    ManifestRef,
    content_hash,
    manifest_ref,
    named_fields,
    parse_manifest_key,
)
from s3fs_meta.codec.keyring import HASH_BYTES, Keyring
from s3fs_meta.codec.pack import parse_key as parse_pack_key
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import (
    BLOCK_BYTES_MAX,
    CHANGELOG_LOCATIONS_MAX,
    CHANGELOG_PACKS_MAX,
    CHANGELOG_PARTS_MAX,
    CHANGELOG_SECTION_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    KEY_BYTES_MAX,
    PACK_BYTES_MAX,
)
from s3fs_meta.model import BlockId, Epoch, ObjectKey, PackId, PackState, Txg

VERSION: Final = 1
SPAN_VERSION: Final = 2  # format version of changelogs that start a time span
NO_FLOOR: Final = Txg(0)  # retention floor 0: all txgs are retained
PREFIX: Final = "changelog/"
PART_PREFIX: Final = "changelog-part/"
NONCE_BYTES: Final = 16
RANDOM_BYTES: Final = 8

_KIND: Final = b"changes"
_PART_KIND: Final = b"part"
TXG: Final = r"([0-9]{12}|[1-9][0-9]{12,18})"
_KEY: Final = re.compile(f"changelog/{TXG}", re.ASCII)
_PART_KEY: Final = re.compile(
    f"changelog-part/{TXG}-(0|[1-9][0-9]{{0,18}})-[0-9a-f]{{16}}/([0-9]{{6}})", re.ASCII
)
_COUNT: Final = struct.Struct(">I")
# fields of a location: block, plain bytes, pack, offset, stored bytes, hash
LOCATION: Final = struct.Struct(">QIQQI32s")
_STATES: Final = (PackState.STORED, PackState.CONDEMNED)
PART_ENCODED_BYTES_MAX: Final = CHANGELOG_SECTION_BYTES_MAX + envelope.OVERHEAD_BYTES
_COMPARED_BYTES: Final = 1 << 16  # number of bytes of two changesets that are compared in one step
NUMBER_MAX: Final = (
    INTEGER_MAX - 1
)  # largest txg, block or pack number, so that a writer can still add 1
# Maximum size of a JSON header with its length before it.
COUNTED_HEADER_BYTES_MAX: Final = ENVELOPE_BYTES_MAX - CHANGELOG_SECTION_BYTES_MAX
HEADER_VALUES_MAX: Final = 3 * CHANGELOG_PARTS_MAX + 6 * CHANGELOG_PACKS_MAX + VALUES_MAX
# Maximum sizes of one part, one pack and one number as JSON, in bytes.
_PART_JSON_BYTES: Final = 170
_PACK_JSON_BYTES: Final = 120
_NUMBER_JSON_BYTES: Final = 24

assert CHANGELOG_PARTS_MAX <= 10**6, "a part number must have at most six digits"
assert (
    COUNTED_HEADER_BYTES_MAX - _COUNT.size
    > CHANGELOG_PARTS_MAX * _PART_JSON_BYTES
    + CHANGELOG_PACKS_MAX * (_PACK_JSON_BYTES + _NUMBER_JSON_BYTES)
), "a changelog must fit into one envelope"


class Kind(enum.Enum):
    """The kind of a changelog: a group of changes, a fence record, or an image."""

    GROUP = "group"  # a changelog with the changes of one txg
    FENCE = "fence"  # a changelog without changes, which takes the fenced writer's next txg number
    IMAGE = "image"  # the changelog refers to an image that replaces the entire state


class Location(NamedTuple):
    """The location of a block's content in a pack, or a record that the content is lost."""

    block: BlockId
    plain_bytes: int
    hash: bytes  # keyring.block_hash of the block's content; all zeros if the content is lost
    pack: PackId | None  # pack, offset and length are None if the content is lost
    pack_offset: int | None
    stored_bytes: int | None


class PackNote(NamedTuple):
    """A pack that the txg added or condemned; blocks must not refer to condemned packs."""

    pack: PackId
    object_key: ObjectKey
    object_bytes: int
    state: PackState  # the new state of the pack: STORED or CONDEMNED


class PartRef(NamedTuple):
    """A reference to one part of a changelog: the key and the content_hash of the part's object."""

    key: ObjectKey
    hash: str


class Section(NamedTuple):
    """Some changes in a txg: a changeset from SQLite's session extension, and block locations."""

    changeset: bytes
    locations: tuple[Location, ...]


NO_CHANGES: Final = Section(b"", ())


@dataclass(frozen=True)
class Changelog:
    """The fields of one changelog: the changes of a txg, and its position in the chain."""

    kind: Kind
    txg: Txg
    epoch: Epoch  # the epoch of the writer that cut the txg
    nonce: str  # 32 random hexadecimal digits, which make each changelog unique
    uuid: str  # identifier of the filesystem
    schema_version: int
    created_ns: int  # time of the txg's cut; increases within a time span
    previous: str  # content_hash of the previous changelog; NO_HASH if there is none
    image: ManifestRef | None = None  # the image with the complete state; only for kind IMAGE
    # References to sections in separate objects; they are applied before the field "section".
    parts: tuple[PartRef, ...] = ()
    packs: tuple[PackNote, ...] = ()
    forgotten: tuple[PackId, ...] = ()  # packs whose objects have been deleted
    section: Section = NO_CHANGES
    floor: Txg = NO_FLOOR  # retention floor; objects that only earlier txgs need may be deleted
    begins_span: bool = False  # True if earlier txgs may have later times; only for kind IMAGE


def key_of(txg: Txg) -> ObjectKey:
    """Return the object key of a txg's changelog."""
    return ObjectKey(f"{PREFIX}{txg:0{TXG_DIGITS}d}")


def parse_key(key: str) -> Txg | None:
    """Return the txg in the key of a changelog, or None if *key* is not the key of a changelog."""
    match = _KEY.fullmatch(key)
    if match is None or not 0 < int(match[1]) <= NUMBER_MAX:
        return None
    return Txg(int(match[1]))


def part_prefix(txg: Txg, epoch: Epoch, random_bytes: bytes) -> str:
    """Return the key prefix shared by all parts of one upload attempt, without the final slash."""
    assert len(random_bytes) == RANDOM_BYTES, "the name of a part contains 8 random bytes"
    return f"changelog-part/{txg:0{TXG_DIGITS}d}-{epoch}-{random_bytes.hex()}"


def part_key(prefix: str, number: int) -> ObjectKey:
    """Return the object key of part *number* of a changelog, counted from 0."""
    assert 0 <= number < CHANGELOG_PARTS_MAX, "the part number is out of range"
    return ObjectKey(f"{prefix}/{number:06d}")


def parse_part_key(key: str) -> Txg | None:
    """Return the txg in the key of a part, or None if *key* is not the key of a part."""
    name = part_name(key)
    return None if name is None else name[0]


def encode(changelog: Changelog, keyring: Keyring) -> bytes:
    """Return the bytes of a changelog's object; its key is ``key_of(changelog.txg)``.

    Raises:
        FormatError: a field is out of range, which is a bug; the object must not be stored.
    """
    key = key_of(changelog.txg)
    header = counted_header(dump_header(changelog))
    payload = section_payload(key, changelog.section, header)
    if _parse(key, payload, changelog.section) != changelog:
        raise FormatError(
            key, "bug: the encoded changelog decodes to other values, so it was not stored"
        )
    return envelope.encode(_KIND, key, payload, keyring)


def decode(key: ObjectKey, data: bytes | memoryview, keyring: Keyring) -> Changelog:
    """Return the changelog in the object *key*.

    Raises:
        NewerFormatError: the object has a version that this program does not know.
        FormatError: the object is corrupt, or its txg differs from the txg in *key*.
    """
    return _parse(key, envelope.decode(_KIND, key, data, keyring))


def encode_part(key: ObjectKey, section: Section, keyring: Keyring) -> bytes:
    """Return the bytes of the changelog part *key*, which contains *section*.

    Raises:
        FormatError: a field is out of range, which is a bug; the object must not be stored.
    """
    return envelope.encode(_PART_KIND, key, section_payload(key, section), keyring)


def decode_part(part: PartRef, data: bytes | memoryview, keyring: Keyring) -> Section:
    """Decode the object of a changelog part; return its section.

    Raises:
        FormatError: the object is corrupt, or its hash differs from the hash in the changelog.
    """
    if content_hash(data) != part.hash:
        raise FormatError(
            part.key, "the content of the part does not match the hash in its changelog"
        )
    return decode_section(part.key, envelope.decode(_PART_KIND, part.key, data, keyring))


def encode_section(section: Section, before: bytes = b"") -> bytes:
    """Return *before* followed by the binary form of a section; do not verify the result."""
    rows = [
        LOCATION.pack(
            one.block,
            one.plain_bytes,
            one.pack or 0,
            one.pack_offset or 0,
            one.stored_bytes or 0,
            one.hash,
        )
        for one in section.locations
    ]
    return b"".join((before, _COUNT.pack(len(rows)), *rows, section.changeset))


def decode_section(key: str, data: bytes | memoryview) -> Section:
    """Decode the binary form of a section; do not check the content of its changeset.

    Raises:
        FormatError: the section is corrupt.
    """
    view = memoryview(data)
    end = _end_of_locations(key, view)
    locations = tuple(_location(key, row) for row in _rows(view[:end]))
    require_distinct(key, "block", [one.block for one in locations])
    return Section(bytes(view[end:]), locations)


def require_section(key: str, data: memoryview, section: Section) -> None:
    """Raise FormatError unless *data* decodes to *section*; build no second section in memory."""
    end = _end_of_locations(key, data)
    rows = map(functools.partial(_location, key), _rows(data[:end]))
    require_distinct(key, "block", [one.block for one in section.locations])
    are_equal = all(
        found == wanted for found, wanted in itertools.zip_longest(rows, section.locations)
    )
    changes, wanted = data[end:], section.changeset
    # Compare in pieces, because a comparison in one step would need a copy of all bytes.
    pieces = range(0, max(len(changes), len(wanted)), _COMPARED_BYTES)
    if not are_equal or any(
        bytes(changes[at : at + _COMPARED_BYTES]) != wanted[at : at + _COMPARED_BYTES]
        for at in pieces
    ):
        raise FormatError(
            key, "bug: the encoded section decodes to other values, so it was not stored"
        )


def _end_of_locations(key: str, view: memoryview) -> int:
    """Return the length of a section's locations; the changeset begins after them."""
    if len(view) > CHANGELOG_SECTION_BYTES_MAX or len(view) < _COUNT.size:
        raise FormatError(key, "a section has an impossible length")
    count: int = _COUNT.unpack_from(view)[0]
    if count > CHANGELOG_LOCATIONS_MAX:
        raise FormatError(key, f"a section lists the locations of too many blocks: {count}")
    end = _COUNT.size + count * LOCATION.size
    if end > len(view):
        raise FormatError(key, "a section ends before its last location")
    return end


def _rows(locations: memoryview) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of each location.

    The function iterates over a copy of type bytes: without the fix of issue 77894, CPython crashes
    when it frees an iterator over a memoryview.
    """
    return LOCATION.iter_unpack(bytes(locations[_COUNT.size :]))


def section_bytes(locations: int, changeset_bytes: int) -> int:
    """Return the length of a section's binary form, in bytes."""
    return _COUNT.size + locations * LOCATION.size + changeset_bytes


def section_payload(key: ObjectKey, section: Section, before: bytes = b"") -> bytes:
    """Return *before* followed by the binary form of a section, after verifying the result.

    Raises:
        FormatError: a field is out of range, or the binary form decodes to a different section.
    """
    try:
        data = encode_section(section, before)
    except struct.error as exc:
        raise FormatError(key, "a number in a location is out of range") from exc
    require_section(key, memoryview(data)[len(before) :], section)
    return data


def _location(key: str, row: tuple[int, int, int, int, int, bytes]) -> Location:
    block, plain_bytes, pack, offset, stored_bytes, content_hash_ = row
    if not 0 < plain_bytes <= BLOCK_BYTES_MAX or not 0 < block <= NUMBER_MAX:
        raise FormatError(key, "a block has an invalid number or length")
    if not pack:
        if offset or stored_bytes or any(content_hash_):
            raise FormatError(key, "a lost block has a location")
        return Location(BlockId(block), plain_bytes, content_hash_, None, None, None)
    if pack > NUMBER_MAX or stored_bytes == 0 or offset + stored_bytes > PACK_BYTES_MAX:
        raise FormatError(key, "a block has an invalid location in its pack")
    return Location(BlockId(block), plain_bytes, content_hash_, PackId(pack), offset, stored_bytes)


def dump_header(changelog: Changelog) -> bytes:
    """Return the JSON header of a changelog."""
    span = {"begins_span": True} if changelog.begins_span else {}
    return dump(
        span
        | {
            "version": SPAN_VERSION if span else VERSION,
            "kind": changelog.kind.value,
            "txg": changelog.txg,
            "epoch": changelog.epoch,
            "nonce": changelog.nonce,
            "uuid": changelog.uuid,
            "schema_version": changelog.schema_version,
            "created_ns": changelog.created_ns,
            "previous": changelog.previous,
            "image": changelog.image and list(changelog.image),
            "parts": [list(part) for part in changelog.parts],
            "packs": [list(pack) for pack in changelog.packs],
            "forgotten": list(changelog.forgotten),
            "floor": changelog.floor,
        }
    )


def counted_header(header: bytes) -> bytes:
    """Return the JSON header of a payload, with its length before it."""
    return _COUNT.pack(len(header)) + header


def split_header(
    key: str, payload: bytes, noun: str, *, values_max: int = VALUES_MAX
) -> tuple[Fields, memoryview]:
    """Return the fields of the header at the start of a payload, and the bytes after the header.

    Raises:
        FormatError: the payload of the *noun* ends within its header, or the header is invalid.
    """
    end = _COUNT.size
    if len(payload) >= end:
        end += _COUNT.unpack_from(payload)[0]
    if end > len(payload) or end > COUNTED_HEADER_BYTES_MAX:
        raise FormatError(key, f"the {noun} ends within its header")
    fields = Fields.parse(key, payload[_COUNT.size : end], values_max=values_max)
    return fields, memoryview(payload)[end:]


def _parse(key: ObjectKey, payload: bytes, section: Section | None = None) -> Changelog:
    """Return the changelog in a payload; decode its section unless *section* is given."""
    fields, rest = split_header(key, payload, "changelog", values_max=HEADER_VALUES_MAX)
    version = fields.integer("version", 1)
    if version not in {VERSION, SPAN_VERSION}:
        raise NewerFormatError(key, f"the changelog version {version} is unknown")
    if version == SPAN_VERSION and not fields.boolean("begins_span"):
        raise FormatError(key, "the version of the changelog is higher than its fields require")
    changelog = Changelog(
        kind=Kind(fields.matching("kind", _KINDS)),
        txg=Txg(fields.integer("txg", 1, NUMBER_MAX)),
        epoch=Epoch(fields.integer("epoch")),
        nonce=fields.hexadecimal("nonce", NONCE_BYTES),
        uuid=fields.matching("uuid", UUID),
        schema_version=fields.integer("schema_version", 1),
        created_ns=fields.integer("created_ns"),
        previous=fields.hexadecimal("previous", HASH_BYTES),
        image=fields.optional("image", lambda name: manifest_ref(key, fields, name)),
        parts=tuple(_part(key, item) for item in fields.array("parts", CHANGELOG_PARTS_MAX)),
        packs=tuple(pack_of(key, item) for item in fields.array("packs", CHANGELOG_PACKS_MAX)),
        forgotten=numbers_of(key, fields.array("forgotten", CHANGELOG_PACKS_MAX)),
        section=section or decode_section(key, rest),
        floor=Txg(fields.integer("floor")),
        begins_span=version == SPAN_VERSION,
    )
    fields.finish()
    _check(key, changelog)
    return changelog


def _check(key: ObjectKey, changelog: Changelog) -> None:
    """Raise FormatError if the fields of a changelog contradict each other or the object's name."""
    if key != key_of(changelog.txg):
        raise FormatError(key, "the txg in the changelog differs from the txg in its name")
    if changelog.floor > changelog.txg:
        raise FormatError(key, "the retention floor of the changelog is later than its txg")
    if changelog.begins_span and changelog.kind is not Kind.IMAGE:
        raise FormatError(key, "only a changelog of kind image may begin a time span")
    if (changelog.kind is Kind.IMAGE) != (changelog.image is not None):
        raise FormatError(
            key, "a changelog of kind image must refer to an image, and no other changelog may"
        )
    if changelog.image is not None:
        name = parse_manifest_key(changelog.image.key)
        if name is None or name.txg != changelog.txg or name.epoch > changelog.epoch:
            raise FormatError(key, "the changelog's image has another txg, or a later epoch")
    changes = changelog.parts or changelog.packs or changelog.forgotten
    if changelog.kind is not Kind.GROUP and (changes or changelog.section != NO_CHANGES):
        raise FormatError(
            key, f"a changelog of kind {changelog.kind.value} must not contain changes"
        )
    _check_lists(key, changelog)


def _check_lists(key: ObjectKey, changelog: Changelog) -> None:
    """Raise FormatError if the changelog lists parts or packs that it must not list."""
    for part in changelog.parts:
        if part_name(part.key) != (changelog.txg, changelog.epoch):
            raise FormatError(key, "the changelog lists a part of another changelog")
    require_distinct(key, "part", [part.key for part in changelog.parts])
    check_packs(key, changelog.packs, changelog.forgotten, changelog.epoch)


def check_packs(
    key: ObjectKey, packs: Sequence[PackNote], forgotten: Sequence[PackId], epoch_max: Epoch
) -> None:
    """Raise FormatError if a pack is listed twice or has an epoch above *epoch_max*."""
    for pack in packs:
        epoch = parse_pack_key(pack.object_key)
        if epoch is None or epoch > epoch_max:
            raise FormatError(key, "the object lists a pack with an invalid name or a later epoch")
    require_distinct(key, "pack's name", [pack.object_key for pack in packs])
    require_distinct(key, "pack", [*(pack.pack for pack in packs), *forgotten])


def require_distinct(key: str, noun: str, items: Sequence[object]) -> None:
    """Raise FormatError if an item occurs twice in a list."""
    if len(set(items)) != len(items):
        raise FormatError(key, f"the object contains a duplicate {noun}")


def _part(key: ObjectKey, item: object) -> PartRef:
    inner = named_fields(key, item, PartRef._fields)
    return PartRef(
        ObjectKey(inner.matching("key", _PART_KEY)), inner.hexadecimal("hash", HASH_BYTES)
    )


def pack_of(key: ObjectKey, item: object) -> PackNote:
    """Return a PackNote from parsed JSON; raise FormatError if the JSON is invalid."""
    inner = named_fields(key, item, PackNote._fields)
    return PackNote(
        PackId(inner.integer("pack", 1, NUMBER_MAX)),
        ObjectKey(inner.text("object_key", KEY_BYTES_MAX)),
        inner.integer("object_bytes", 1, PACK_BYTES_MAX),
        PackState(inner.integer("state", min(_STATES), max(_STATES))),
    )


def part_name(key: str) -> tuple[Txg, Epoch] | None:
    """Return the txg and the epoch in the key of a part, or None if *key* is another key."""
    match = _PART_KEY.fullmatch(key)
    if match is None or not 0 < int(match[1]) <= NUMBER_MAX or int(match[2]) > INTEGER_MAX:
        return None
    return Txg(int(match[1])), Epoch(int(match[2]))


def numbers_of(key: ObjectKey, items: Sequence[object]) -> tuple[PackId, ...]:
    """Return pack numbers from parsed JSON; raise FormatError if they are invalid."""
    inner = Fields(key, {str(place): item for place, item in enumerate(items)})
    return tuple(PackId(inner.integer(str(place), 1, NUMBER_MAX)) for place in range(len(items)))


_KINDS: Final = re.compile("|".join(kind.value for kind in Kind), re.ASCII)
