"""Levels: objects that each contain the merged changes of a run of changelogs.

Owns: the fields, names and alignment of level objects. Does not know: how changes are merged.
Keeps: a level object records the hashes of its last changelog and of the changelog before its run.
So a reader detects a level that was merged from other changelogs. A level object can be decoded
only under its own name.
Design: docs/design/format.md, "Level".

    level/<n>/<first txg>-<last txg>     5^n txgs; the last txg is a multiple of 5^n; create-only
"""

from dataclasses import dataclass
from typing import Final

from s3fs_meta.codec import envelope
from s3fs_meta.codec.changelog import (
    HEADER_VALUES_MAX,
    NUMBER_MAX,
    PackNote,
    Section,
    check_packs,
    counted_header,
    decode_section,
    numbers_of,
    pack_of,
    section_payload,
    split_header,
)
from s3fs_meta.codec.fields import dump
from s3fs_meta.codec.image import UUID
from s3fs_meta.codec.keyring import HASH_BYTES, Keyring
from s3fs_meta.codec.txg_runs import TxgRuns
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import (
    CHANGELOG_PACKS_MAX,
    LEVEL_FAN_OUT,
    LEVEL_SECTION_BYTES_MAX,
    LEVELS_MAX,
)
from s3fs_meta.model import Epoch, ObjectKey, PackId, Txg

VERSION: Final = 1
PREFIX: Final = "level/"

RUNS: Final = TxgRuns(PREFIX, LEVEL_FAN_OUT, LEVELS_MAX)

_KIND: Final = b"level"

first_of = RUNS.first_of
ends_at = RUNS.ends_at
key_of = RUNS.key_of
prefix_of = RUNS.prefix_of
parse_key = RUNS.parse_key


@dataclass(frozen=True)
class Level:
    """The merged changes in a run of txgs, and the hashes that link the run to the chain."""

    level: int  # level of the object, which merges LEVEL_FAN_OUT ** level txgs
    last: Txg
    epoch: Epoch  # the latest epoch of the merged changelogs
    uuid: str  # identifier of the filesystem
    schema_version: int
    first_ns: int  # time at which the first merged txg was cut
    created_ns: int  # time at which the last merged txg was cut
    previous: str  # content_hash of the changelog before the merged changelogs
    hash: str  # content_hash of the last merged changelog
    floor: Txg  # retention floor of the last merged changelog
    packs: tuple[PackNote, ...]
    forgotten: tuple[PackId, ...]
    section: Section

    @property
    def first(self) -> Txg:
        """Return the first txg of the run."""
        return first_of(self.level, self.last)

    @property
    def key(self) -> ObjectKey:
        """Return the object key of this level object."""
        return key_of(self.level, self.last)


def encode(level: Level, keyring: Keyring) -> bytes:
    """Encode a level; return the bytes of the object ``level.key``.

    Raises:
        FormatError: a field is out of range, which is a bug; the object must not be stored.
    """
    payload = section_payload(level.key, level.section, counted_header(dump_header(level)))
    if _parse(level.key, payload, level.section) != level:
        raise FormatError(
            level.key, "bug: the encoded level object decodes to other values, so it was not stored"
        )
    return envelope.encode(_KIND, level.key, payload, keyring)


def decode(key: ObjectKey, data: bytes | memoryview, keyring: Keyring) -> Level:
    """Return the level in the object *key*.

    Raises:
        NewerFormatError: the object has a version that this program does not know.
        FormatError: the object is corrupt, or has a different level or run than *key* names.
    """
    return _parse(key, envelope.decode(_KIND, key, data, keyring))


def dump_header(level: Level) -> bytes:
    """Return the JSON header of a level object."""
    return dump(
        {
            "version": VERSION,
            "level": level.level,
            "last": level.last,
            "epoch": level.epoch,
            "uuid": level.uuid,
            "schema_version": level.schema_version,
            "first_ns": level.first_ns,
            "created_ns": level.created_ns,
            "previous": level.previous,
            "hash": level.hash,
            "floor": level.floor,
            "packs": [list(pack) for pack in level.packs],
            "forgotten": list(level.forgotten),
        }
    )


def _parse(key: ObjectKey, payload: bytes, section: Section | None = None) -> Level:
    """Return the level in a payload; decode its section unless *section* is given."""
    fields, rest = split_header(key, payload, "level object", values_max=HEADER_VALUES_MAX)
    if len(rest) > LEVEL_SECTION_BYTES_MAX:
        raise FormatError(key, "the level object has more changes than the format allows")
    version = fields.integer("version", 1)
    if version != VERSION:
        raise NewerFormatError(key, f"the level version {version} is unknown")
    level = Level(
        level=fields.integer("level", 1, LEVELS_MAX),
        last=Txg(fields.integer("last", 1, NUMBER_MAX)),
        epoch=Epoch(fields.integer("epoch")),
        uuid=fields.matching("uuid", UUID),
        schema_version=fields.integer("schema_version", 1),
        first_ns=fields.integer("first_ns"),
        created_ns=fields.integer("created_ns"),
        previous=fields.hexadecimal("previous", HASH_BYTES),
        hash=fields.hexadecimal("hash", HASH_BYTES),
        floor=Txg(fields.integer("floor")),
        packs=tuple(pack_of(key, item) for item in fields.array("packs", CHANGELOG_PACKS_MAX)),
        forgotten=numbers_of(key, fields.array("forgotten", CHANGELOG_PACKS_MAX)),
        section=section or decode_section(key, rest),
    )
    fields.finish()
    if parse_key(key) != (level.level, level.last):
        raise FormatError(key, "the level or the last txg in the object differs from its name")
    if level.floor > level.last or level.first_ns >= level.created_ns:
        raise FormatError(
            key,
            "the retention floor is above the last txg, or the first txg is not older than the last",
        )
    check_packs(key, level.packs, level.forgotten, level.epoch)
    return level
