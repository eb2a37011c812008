"""Tests that a parser of arbitrary bytes returns an encodable value or raises FormatError.

Bytes with a wrong checksum never reach a parser. The tests therefore change the payload and
recompute the checksum, as an attacker with write access to a plain bucket, or a faulty program,
could do. These tests take a few seconds; ``make fuzz`` tries many more examples.
"""

import os
import struct
from collections.abc import Callable
from typing import Final

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import changelog, envelope, image, lease, level, pack, superblock, text_object
from s3fs_meta.codec.changelog import PartRef
from s3fs_meta.codec.compression import Compressor, DecompressionError, decompress
from s3fs_meta.codec.image import Piece, content_hash, encode_piece
from s3fs_meta.codec.keyring import Keyring, nonce
from s3fs_meta.codec.lease import Head, Lease
from s3fs_meta.errors import FormatError
from s3fs_meta.limits import MIB
from s3fs_meta.model import BlockId, BlockIndex, Epoch, Ino, ObjectKey
from tests.codec import changelogs as some_changelogs
from tests.codec import images as some_images
from tests.codec import levels as some_levels
from tests.codec.superblocks import SUPERBLOCK_1
from tests.fuzz.mutations import mutated_bytes, mutated_json

EXAMPLES: Final = int(os.environ.get("S3FS_META_FUZZ_EXAMPLES", "0"))
PLAIN: Final = Keyring(None, bytes(32))
ENCRYPTED: Final = Keyring.from_master(bytes(range(32)))
pytestmark = [pytest.mark.thorough, *([pytest.mark.timeout(7200)] if EXAMPLES else [])]
both = pytest.mark.parametrize(
    "keyring",
    [
        pytest.param(PLAIN, marks=pytest.mark.slow, id="plain"),
        pytest.param(ENCRYPTED, id="encrypted"),
    ],
)
fuzzed = settings(
    max_examples=EXAMPLES or 150,
    derandomize=not EXAMPLES,  # The seed is fixed in the test suite and random in make fuzz.
    database=None,
    suppress_health_check=list(HealthCheck),
)

LINK_KEY: Final = some_changelogs.KEY
LEVEL_KEY: Final = some_levels.KEY
PART_KEY: Final = changelog.part_key(some_changelogs.PREFIX, 0)
MANIFEST_KEY: Final = some_images.KEY
PACK_KEY: Final = pack.new_key(Epoch(7), bytes(range(16)))
CONTENT: Final = bytes(range(256)) + b"pages " * 500


def outcome(parse: Callable[[], object]) -> object:
    """Return the result of a parser, or None if it raises FormatError.

    Any other exception is a bug.
    """
    try:
        return parse()
    except FormatError:
        return None


# --- parsers of objects in envelopes -----------------------------------------------------------


def split(link: changelog.Changelog) -> tuple[bytes, bytes]:
    """Split a changelog into its header and its section."""
    return changelog.dump_header(link), changelog.encode_section(link.section)


def link_payloads() -> st.SearchStrategy[bytes]:
    """Return changelog payloads with random edits of the bytes, or of the JSON header."""

    def joined(parts: tuple[bytes, bytes]) -> bytes:
        return struct.pack(">I", len(parts[0])) + b"".join(parts)

    def edited(link: changelog.Changelog) -> st.SearchStrategy[bytes]:
        header, section = split(link)
        sections = st.just(section) | mutated_bytes(section)
        headers = mutated_json(header) | st.just(header)
        return mutated_bytes(joined((header, section))) | st.tuples(headers, sections).map(joined)

    links = (some_changelogs.GROUP, some_changelogs.FENCE, some_changelogs.IMAGE)
    return st.one_of([edited(link) for link in links])


@both
@fuzzed
@given(payload=link_payloads())
def test_random_changelog_is_rejected_or_survives_a_round_trip(
    keyring: Keyring, payload: bytes
) -> None:
    """A changelog that can be decoded survives a round trip."""
    data = envelope.encode(b"changes", LINK_KEY, payload, keyring)
    link = outcome(lambda: changelog.decode(LINK_KEY, data, keyring))
    if isinstance(link, changelog.Changelog):
        again = changelog.encode(link, keyring)
        assert changelog.decode(LINK_KEY, again, keyring) == link


def level_payloads() -> st.SearchStrategy[bytes]:
    """Return level payloads with random edits of the bytes, or of the JSON header."""
    header = level.dump_header(some_levels.LEVEL)
    section = changelog.encode_section(some_levels.LEVEL.section)
    return mutated_bytes(struct.pack(">I", len(header)) + header + section) | mutated_json(
        header
    ).map(lambda text: struct.pack(">I", len(text)) + text + section)


@both
@fuzzed
@given(payload=level_payloads())
def test_random_level_object_is_rejected_or_survives_a_round_trip(
    keyring: Keyring, payload: bytes
) -> None:
    """A level object that can be decoded survives a round trip."""
    data = envelope.encode(b"level", LEVEL_KEY, payload, keyring)
    found = outcome(lambda: level.decode(LEVEL_KEY, data, keyring))
    if isinstance(found, level.Level):
        assert level.decode(LEVEL_KEY, level.encode(found, keyring), keyring) == found


@fuzzed
@given(payload=mutated_bytes(changelog.encode_section(some_changelogs.SECTION)))
def test_random_changelog_part_is_rejected_or_survives_a_round_trip(payload: bytes) -> None:
    """A changelog part that can be decoded is encoded to the same bytes."""
    data = envelope.encode(b"part", PART_KEY, payload, PLAIN)
    section = outcome(
        lambda: changelog.decode_part(PartRef(PART_KEY, content_hash(data)), data, PLAIN)
    )
    if isinstance(section, changelog.Section):
        assert changelog.encode_section(section) == payload


@both
@fuzzed
@given(
    payload=mutated_json(image.dump_manifest(some_images.MANIFEST))
    | mutated_json(some_images.MANIFEST_1)
    | mutated_bytes(image.dump_manifest(some_images.MANIFEST))
)
def test_random_manifest_is_rejected_or_survives_a_round_trip(
    keyring: Keyring, payload: bytes
) -> None:
    """A manifest that can be decoded survives a round trip."""
    data = envelope.encode(b"manifest", MANIFEST_KEY, payload, keyring)
    manifest = outcome(lambda: image.decode(MANIFEST_KEY, data, keyring))
    if isinstance(manifest, image.Manifest):
        again = image.encode(manifest, MANIFEST_KEY, keyring)
        assert image.decode(MANIFEST_KEY, again, keyring) == manifest


PIECE: Final = Piece(image.piece_key(some_images.PREFIX, 0), len(CONTENT), content_hash(CONTENT))


@both
@fuzzed
@given(data=st.data())
def test_content_of_a_random_envelope_has_the_declared_length(
    keyring: Keyring, data: st.DataObject
) -> None:
    """The test edits the header or the payload, and recomputes the authenticator.

    The decoder rejects the envelope, or returns content of the length in the header.
    """
    packed = Compressor.zstd(1).compress(CONTENT)
    salt = bytes(16)
    intact = envelope.HEADER.pack(
        b"S3FSMETA", 1, int(keyring.encrypted), b"piece", len(CONTENT), salt
    )
    header = data.draw(st.just(intact) | mutated_bytes(intact))
    body = data.draw(mutated_bytes(packed))
    key = PIECE.key
    if keyring.encrypted:
        cipher = keyring.object_cipher(header[24:40], envelope.PURPOSE)
        encoded = header + cipher.encrypt(nonce(0), body, header + key.encode())
    else:
        encoded = header + body + keyring.checksum(b"envelope", header, key.encode(), body)

    content = outcome(lambda: envelope.decode(b"piece", key, encoded, keyring))

    if isinstance(content, bytes):
        assert len(content) == struct.unpack(">I", header[20:24])[0]
    assert outcome(lambda: image.decode_piece(PIECE, encoded, keyring)) in {None, CONTENT}


@both
@fuzzed
@given(data=st.data())
def test_modified_object_is_refused_unless_its_checksum_is_recomputed(
    keyring: Keyring, data: st.DataObject
) -> None:
    link = changelog.encode(some_changelogs.GROUP, keyring)
    manifest = image.encode(some_images.MANIFEST, MANIFEST_KEY, keyring)
    piece = encode_piece(PIECE.key, CONTENT, keyring)

    damaged = data.draw(mutated_bytes(link))
    found = outcome(lambda: changelog.decode(LINK_KEY, damaged, keyring))
    assert found is None or damaged == link
    damaged = data.draw(mutated_bytes(manifest))
    found = outcome(lambda: image.decode(MANIFEST_KEY, damaged, keyring))
    assert found is None or damaged == manifest
    damaged = data.draw(mutated_bytes(piece))
    found = outcome(lambda: image.decode_piece(PIECE, damaged, keyring))
    assert found is None or damaged == piece


@fuzzed
@given(
    packed=st.sampled_from(["none", "zstd-1", "zstd-19"]).flatmap(
        lambda name: mutated_bytes(Compressor.for_name(name).compress(CONTENT))
    ),
    plain_bytes=st.sampled_from([0, 1, len(CONTENT) - 1, len(CONTENT), len(CONTENT) + 1, MIB]),
)
def test_decompression_of_random_data_fails_or_returns_the_declared_length(
    packed: bytes, plain_bytes: int
) -> None:
    """Decompression returns exactly the requested number of bytes, or raises an error."""
    try:
        assert len(decompress(packed, plain_bytes)) == plain_bytes
    except DecompressionError:
        return


# --- parsers of packs --------------------------------------------------------------------------


def pack_of(keyring: Keyring) -> pack.Pack:
    """Return a pack with a few blocks."""
    writer = pack.PackWriter(PACK_KEY, keyring, "zstd-1")
    for number, content in enumerate((CONTENT, b"x", bytes(4096)), 1):
        digest = keyring.block_hash(content)
        writer.add(BlockId(number), Ino(9), BlockIndex(number), digest, content)
    return writer.finish()


def sealed_pack(keyring: Keyring, records: bytes, index: bytes, fields: bytes | None) -> bytes:
    """Return a pack with a given index, in which *fields* replace fields of the trailer."""
    record = Compressor.zstd(1).compress(index)
    if keyring.encrypted:
        salt = records[: pack.SALT_BYTES].ljust(pack.SALT_BYTES, b"\0")
        cipher = pack.pack_cipher(keyring, PACK_KEY, salt)
        record = salt + cipher.encrypt(nonce(len(records)), record, b"index")
    if fields is None:
        entries = min(len(index) // pack.ENTRY.size, (1 << 32) - 1)
        fields = pack.FIELDS.pack(len(record), entries, 1, int(keyring.encrypted))
    checksum = keyring.checksum(b"pack", PACK_KEY.encode(), record, fields)
    return records + record + fields + checksum + b"S3FSPACK"


@both
@fuzzed
@given(data=st.data())
def test_random_pack_index_is_refused_or_is_consistent(
    keyring: Keyring, data: st.DataObject
) -> None:
    """The blocks of an accepted pack index are inside the pack.

    Readable blocks match their hash.
    """
    intact = pack_of(keyring)
    index = b"".join(pack.encode_entry(entry) for entry in intact.entries)
    index_at = sum(entry.stored_bytes for entry in intact.entries)
    text = bytes(intact.data)
    records = data.draw(st.just(text[:index_at]) | mutated_bytes(text[:index_at]))
    index = data.draw(st.just(index) | mutated_bytes(index))
    fields = data.draw(st.none() | mutated_bytes(text[-52:-40]).map(lambda raw: raw[:12]))
    forged = sealed_pack(keyring, records, index, fields)

    outcome(lambda: pack.index_tail_bytes(PACK_KEY, forged, len(forged)))
    entries = outcome(lambda: pack.read_index(keyring, PACK_KEY, forged, len(forged)))
    blocks = outcome(lambda: list(pack.open_pack(keyring, PACK_KEY, forged)))

    if isinstance(entries, list):
        assert b"".join(pack.encode_entry(entry) for entry in entries) == index
        assert sum(entry.stored_bytes for entry in entries) == len(records)
    if isinstance(blocks, list):
        assert [keyring.block_hash(block) for _entry, block in blocks] == [
            entry.hash for entry, _block in blocks
        ]


@both
@fuzzed
@given(
    damaged=mutated_bytes(Compressor.zstd(1).compress(CONTENT)),
    plain_bytes=st.sampled_from([0, len(CONTENT), 1 << 24, (1 << 24) + 1, -1]),
    offset=st.sampled_from([0, 1, 1 << 32]),
)
def test_random_pack_record_is_refused_or_matches_its_hash(
    keyring: Keyring, damaged: bytes, plain_bytes: int, offset: int
) -> None:
    """The decoder rejects a record of a pack, or returns the block with the expected hash."""
    stored = damaged
    if keyring.encrypted:
        cipher = pack.pack_cipher(keyring, PACK_KEY, bytes(8))
        stored = bytes(8) + cipher.encrypt(nonce(offset), damaged, b"block")
    digest = keyring.block_hash(CONTENT)

    for record in (stored, damaged):
        found = outcome(
            lambda record=record: pack.open_block(  # type: ignore[misc]
                keyring, PACK_KEY, record, offset, plain_bytes, digest
            )
        )
        assert found in {None, CONTENT}


# --- parsers of text objects -------------------------------------------------------------------

HEAD: Final = Head(some_images.MANIFEST.txg, MANIFEST_KEY, content_hash(b""))
LEASE: Final = Lease(
    epoch=Epoch(3),
    holder="0123456789abcdef",
    host="host",
    pid=7,
    since_ns=1_700_000_000_000_000_000,
    released=False,
    head=HEAD,
    nonce="5a" * 16,
    machine=lease.MachineMarks("0f" * 16, None),
)
PLAIN_SUPERBLOCK: Final = superblock.Superblock(
    uuid=some_images.MANIFEST.uuid,
    label="label",
    block_bytes=MIB,
    page_size=4096,
    unsafe_single_writer=False,
    features=(),
    hash_key="00" * 32,
    wrapped_by_passphrase=None,
    wrapped_by_recovery=None,
    authenticator=None,
)
SUPERBLOCKS: Final = (superblock.encode(PLAIN_SUPERBLOCK), SUPERBLOCK_1)


def text_objects(intact: bytes) -> st.SearchStrategy[bytes]:
    """Return text objects with random edits of the JSON or the bytes, and a correct checksum."""
    first, rest = intact.split(b"\n", 1)
    fields = rest[: -text_object.LAST_BYTES - 1]

    def closed(body: bytes) -> bytes:
        return body + f"blake3 {blake3(body).hexdigest()}\n".encode("ascii")

    as_json = mutated_json(fields).map(lambda text: first + b"\n" + text + b"\n")
    return (as_json | mutated_bytes(intact[: -text_object.LAST_BYTES])).map(closed)


@fuzzed
@given(data=text_objects(lease.encode(LEASE)))
def test_random_lease_is_rejected_or_survives_a_round_trip(data: bytes) -> None:
    """A lease that can be decoded survives a round trip."""
    found = outcome(lambda: lease.decode(lease.KEY, data))
    if isinstance(found, Lease):
        assert lease.decode(lease.KEY, lease.encode(found)) == found


@fuzzed
@given(text=mutated_json(lease.encode_head(HEAD).encode()) | st.text())
def test_random_image_reference_is_rejected_or_survives_a_round_trip(text: bytes | str) -> None:
    """The head in the local state is parsed as strictly as the head in a lease."""
    as_text = text if isinstance(text, str) else text.decode("ascii")
    found = outcome(lambda: lease.decode_head("here", as_text))
    if isinstance(found, Head):
        assert lease.decode_head("here", lease.encode_head(found)) == found


@fuzzed
@given(data=text_objects(SUPERBLOCKS[0]) | text_objects(SUPERBLOCKS[1]))
def test_random_superblock_is_rejected_or_survives_a_round_trip(data: bytes) -> None:
    """A decoded superblock survives a round trip, and a plain superblock yields a plain keyring."""
    found = outcome(lambda: superblock.decode(superblock.KEY, data))
    if isinstance(found, superblock.Superblock):
        assert superblock.decode(superblock.KEY, superblock.encode(found)) == found
        assert found.encrypted or not superblock.unlock_plain(found).encrypted


@fuzzed
@given(data=st.data())
def test_modified_text_object_is_refused_unless_its_checksum_is_recomputed(
    data: st.DataObject,
) -> None:
    for intact, parse in (
        (lease.encode(LEASE), lambda text: lease.decode(lease.KEY, text)),
        (SUPERBLOCKS[1], lambda text: superblock.decode(superblock.KEY, text)),
    ):
        damaged = data.draw(mutated_bytes(intact))
        found = outcome(lambda parse=parse, damaged=damaged: parse(damaged))  # type: ignore[misc]
        assert found is None or damaged == intact


# --- parsers of object keys --------------------------------------------------------------------

NAMES: Final[tuple[ObjectKey, ...]] = (
    LINK_KEY,
    PART_KEY,
    LEVEL_KEY,
    MANIFEST_KEY,
    PIECE.key,
    PACK_KEY,
)
PARSERS: Final[tuple[Callable[[str], object], ...]] = (
    changelog.parse_key,
    changelog.parse_part_key,
    level.parse_key,
    image.parse_manifest_key,
    image.parse_piece_key,
    pack.parse_key,
)


@fuzzed
@given(
    key=st.sampled_from(NAMES)
    .flatmap(lambda name: mutated_bytes(name.encode()))
    .map(lambda raw: raw.decode("latin-1"))
    | st.text()
)
def test_random_object_key_belongs_to_at_most_one_kind_of_object(key: str) -> None:
    """An accepted object key is ASCII and shorter than the limits of all stores."""
    kinds = [parse for parse in PARSERS if parse(key) is not None]

    assert len(kinds) <= 1
    assert not kinds or (key.isascii() and len(key) < 120)
