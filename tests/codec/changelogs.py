"""Example changelogs and changelog parts for tests, and the keyrings that seal them."""

from dataclasses import replace

from s3fs_meta.codec.changelog import (
    NO_CHANGES,
    Changelog,
    Kind,
    Location,
    PackNote,
    PartRef,
    Section,
    key_of,
    part_key,
    part_prefix,
)
from s3fs_meta.codec.image import NO_HASH, ManifestRef, content_hash, manifest_key
from s3fs_meta.codec.pack import new_key
from s3fs_meta.model import BlockId, Epoch, PackId, PackState, Txg

RANDOM = bytes(range(8))

HASH = bytes(range(32))

KEY = key_of(Txg(7))

PREFIX = part_prefix(Txg(7), Epoch(3), RANDOM)

PLACED = Location(BlockId(5), 4096, HASH, PackId(2), 100, 900)

NOWHERE = Location(BlockId(6), 10, bytes(32), None, None, None)

SECTION = Section(b"changes of rows", (PLACED, NOWHERE))

PACKS = (
    PackNote(PackId(2), new_key(Epoch(3), bytes(range(16))), 5000, PackState.STORED),
    PackNote(PackId(1), new_key(Epoch(1), bytes(range(1, 17))), 1, PackState.CONDEMNED),
)

GROUP = Changelog(
    kind=Kind.GROUP,
    txg=Txg(7),
    epoch=Epoch(3),
    nonce="0123456789abcdef" * 2,
    uuid="01234567-89ab-cdef-0123-456789abcdef",
    schema_version=1,
    created_ns=1_700_000_000_000_000_000,
    previous=content_hash(b"changelog 6"),
    parts=(
        PartRef(part_key(PREFIX, 0), content_hash(b"part 0")),
        PartRef(part_key(PREFIX, 1), content_hash(b"part 1")),
    ),
    packs=PACKS,
    forgotten=(PackId(4), PackId(3)),
    section=SECTION,
    floor=Txg(5),
)

FENCE = replace(
    GROUP, kind=Kind.FENCE, previous=NO_HASH, parts=(), packs=(), forgotten=(), section=NO_CHANGES
)

IMAGE = replace(
    FENCE,
    kind=Kind.IMAGE,
    image=ManifestRef(manifest_key(Txg(7), Epoch(3), RANDOM), content_hash(b"manifest")),
)
