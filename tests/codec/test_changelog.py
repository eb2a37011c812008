"""Encoding and decoding of changelogs and their parts."""

import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from s3fs_meta.codec import changelog, envelope
from s3fs_meta.codec.changelog import (
    NO_CHANGES,
    Changelog,
    Kind,
    Location,
    PackNote,
    PartRef,
    Section,
    decode,
    decode_part,
    decode_section,
    encode,
    encode_part,
    encode_section,
    key_of,
    parse_key,
    parse_part_key,
    part_key,
    part_prefix,
    require_section,
    section_bytes,
)
from s3fs_meta.codec.fields import INTEGER_MAX, dump
from s3fs_meta.codec.image import NO_HASH, ManifestRef, content_hash, manifest_key
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.pack import new_key
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import (
    BLOCK_BYTES_MAX,
    CHANGELOG_LOCATIONS_MAX,
    CHANGELOG_PACKS_MAX,
    CHANGELOG_PARTS_MAX,
    CHANGELOG_SECTION_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    PACK_BYTES_MAX,
)
from s3fs_meta.model import BlockId, Epoch, ObjectKey, PackId, PackState, Txg
from s3fs_meta.objects.contract import check_key
from tests.codec.changelogs import (
    FENCE,
    GROUP,
    HASH,
    IMAGE,
    KEY,
    NOWHERE,
    PACKS,
    PLACED,
    PREFIX,
    RANDOM,
    SECTION,
)
from tests.codec.keyrings import ENCRYPTED, PLAIN, both
from tests.damage import flipped

LAST = INTEGER_MAX - 1  # The largest integer n for which SQLite can store n + 1.
SPAN = replace(IMAGE, begins_span=True)
EMPTY = replace(FENCE, kind=Kind.GROUP)


def encoded(header: object, section: bytes = encode_section(NO_CHANGES)) -> bytes:
    """Return a sealed changelog whose header and section were not checked."""
    text = header if isinstance(header, bytes) else dump(header)  # type: ignore[arg-type]
    payload = struct.pack(">I", len(text)) + text + section
    return envelope.encode(b"changes", KEY, payload, PLAIN)


def header_of(link: Changelog) -> dict[str, Any]:
    """Return the JSON fields of a changelog's header."""
    fields = json.loads(changelog.dump_header(link))
    assert isinstance(fields, dict)
    return fields


@both
@pytest.mark.parametrize(
    "link", [GROUP, EMPTY, FENCE, IMAGE, SPAN], ids=["group", "empty", "fence", "image", "span"]
)
def test_decoded_changelog_equals_the_encoded_changelog(keyring: Keyring, link: Changelog) -> None:
    assert decode(KEY, encode(link, keyring), keyring) == link


@both
def test_decoded_changelog_part_equals_the_encoded_part(keyring: Keyring) -> None:
    data = encode_part(part_key(PREFIX, 0), SECTION, keyring)

    assert decode_part(PartRef(part_key(PREFIX, 0), content_hash(data)), data, keyring) == SECTION


OTHER_PART = part_key(part_prefix(Txg(8), Epoch(3), RANDOM), 0)
PART_OF_LATER_EPOCH = part_key(part_prefix(Txg(7), Epoch(4), RANDOM), 0)
IMAGE_HASH = content_hash(b"manifest")


@pytest.mark.parametrize(
    "wrong",
    [
        {"txg": 0},
        {"txg": -7},
        {"txg": True},
        {"epoch": -1},
        {"epoch": 1 << 63},
        {"nonce": "00" * 15},
        {"nonce": "0G" * 16},
        {"uuid": "no uuid"},
        {"uuid": GROUP.uuid.upper()},
        {"schema_version": 0},
        {"created_ns": -1},
        {"created_ns": 1 << 63},
        {"previous": ""},
        {"previous": NO_HASH[1:]},
        {"kind": Kind.FENCE},
        {"kind": Kind.IMAGE},
        {"image": IMAGE.image},
        {"parts": (PartRef(ObjectKey("lease"), NO_HASH),)},
        {"parts": (PartRef(OTHER_PART, NO_HASH),)},
        {"parts": (PartRef(PART_OF_LATER_EPOCH, NO_HASH),)},
        {"parts": (PartRef(part_key(PREFIX, 0), "00"),)},
        {"parts": (GROUP.parts[0], PartRef(part_key(PREFIX, 0), NO_HASH))},
        {"packs": (PACKS[0]._replace(pack=PackId(0)),)},
        {"packs": (PACKS[0]._replace(pack=PackId(INTEGER_MAX)),)},
        {"packs": (PACKS[0]._replace(object_key=ObjectKey("pack/00/x")),)},
        {"packs": (PACKS[0]._replace(object_key=new_key(Epoch(4), bytes(16))),)},
        {"packs": (PACKS[0]._replace(object_bytes=0),)},
        {"packs": (PACKS[0]._replace(object_bytes=PACK_BYTES_MAX + 1),)},
        {"packs": (PACKS[0]._replace(state=PackState.UPLOADING),)},
        {"packs": (PACKS[0], PACKS[1]._replace(pack=PACKS[0].pack))},
        {"packs": (PACKS[0], PACKS[1]._replace(object_key=PACKS[0].object_key))},
        {"forgotten": (PackId(0),)},
        {"forgotten": (PackId(INTEGER_MAX),)},
        {"forgotten": (PackId(9), PackId(9))},
        {"forgotten": (PACKS[0].pack,)},
        {"floor": Txg(8)},
        {"floor": Txg(-1)},
    ],
    ids=str,
)
def test_inconsistent_changelog_is_neither_written_nor_read(wrong: dict[str, Any]) -> None:
    """A changelog whose fields contradict each other or its key is neither encoded nor decoded."""
    link = replace(GROUP, **wrong)

    with pytest.raises(FormatError):
        decode(KEY, encoded(changelog.dump_header(link), encode_section(SECTION)), PLAIN)
    with pytest.raises(FormatError):
        encode(link, PLAIN)


@pytest.mark.parametrize("kind", [Kind.FENCE, Kind.IMAGE])
@pytest.mark.parametrize(
    "wrong",
    [
        {"parts": GROUP.parts},
        {"packs": GROUP.packs},
        {"forgotten": GROUP.forgotten},
        {"section": SECTION},
    ],
    ids=lambda wrong: next(iter(wrong)) if isinstance(wrong, dict) else "",
)
def test_changelog_of_a_fence_or_an_image_must_not_contain_changes(
    kind: Kind, wrong: dict[str, Any]
) -> None:
    link = replace(FENCE if kind is Kind.FENCE else IMAGE, **wrong)

    with pytest.raises(FormatError, match="must not contain changes"):
        encode(link, PLAIN)


@pytest.mark.parametrize(
    "image",
    [
        None,
        ManifestRef(manifest_key(Txg(6), Epoch(3), RANDOM), IMAGE_HASH),
        ManifestRef(manifest_key(Txg(7), Epoch(4), RANDOM), IMAGE_HASH),
        ManifestRef(ObjectKey("lease"), IMAGE_HASH),
        ManifestRef(manifest_key(Txg(7), Epoch(3), RANDOM), "00"),
    ],
)
def test_changelog_with_an_image_of_another_txg_or_later_epoch_is_refused(
    image: ManifestRef | None,
) -> None:
    """A changelog may announce only an image of its own txg, from the same or an earlier epoch."""
    with pytest.raises(FormatError):
        encode(replace(IMAGE, image=image), PLAIN)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "groups"),
        ("kind", 1),
        ("kind", None),
        ("image", []),
        ("image", ["image/x/manifest"]),
        ("parts", {}),
        ("parts", [[]]),
        ("parts", [["changelog-part/000000000007-3-0001020304050607/000000", 1]]),
        ("packs", [1]),
        ("packs", [[2, PACKS[0].object_key, 5000]]),
        ("packs", [[2, PACKS[0].object_key, 5000, 4]]),
        ("packs", [[2, PACKS[0].object_key, 5000, True]]),
        ("packs", [[2, 7, 5000, 2]]),
        ("forgotten", [1.5]),
        ("forgotten", [[1]]),
        ("forgotten", ["1"]),
        ("unknown", 1),
        ("version", 0),
    ],
)
def test_changelog_header_with_an_invalid_value_is_refused(field: str, value: object) -> None:
    with pytest.raises(FormatError) as refused:
        decode(KEY, encoded({**header_of(EMPTY), field: value}), PLAIN)
    assert not isinstance(refused.value, NewerFormatError)


@pytest.mark.parametrize("field", sorted(header_of(GROUP)))
def test_changelog_header_without_one_of_its_fields_is_refused(field: str) -> None:
    header = header_of(GROUP)
    del header[field]

    with pytest.raises(FormatError, match=field):
        decode(KEY, encoded(header, encode_section(SECTION)), PLAIN)


def test_error_about_a_newer_changelog_version_advises_an_upgrade() -> None:
    with pytest.raises(NewerFormatError, match="upgrade"):
        decode(KEY, encoded({**header_of(GROUP), "version": 3}), PLAIN)


def test_changelog_that_begins_a_new_time_span_has_version_2() -> None:
    """A changelog that begins a time span has version 2, which older programs refuse to read."""
    assert [header_of(link)["version"] for link in (GROUP, FENCE, IMAGE, SPAN)] == [1, 1, 1, 2]
    for link, wrong in (
        (SPAN, {"begins_span": False}),
        (IMAGE, {"version": 2}),
        (FENCE, {"version": 2, "begins_span": True}),
    ):
        with pytest.raises(FormatError, match="is damaged"):
            decode(KEY, encoded({**header_of(link), **wrong}), PLAIN)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\0\0\0",
        bytes(4),
        bytes(8),
        b"\xff" * 100,
        struct.pack(">I", 3) + b"{}",
        struct.pack(">I", 100_000) + b"[" * 100_000,
    ],
    ids=range(7),
)
def test_changelog_with_an_invalid_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(FormatError):
        decode(KEY, envelope.encode(b"changes", KEY, payload, PLAIN), PLAIN)


def test_changelog_header_with_too_many_values_is_refused() -> None:
    """A header of 10 million short values compresses to almost nothing, but uses much memory."""
    bomb = b'{"parts": [' + b"[]," * 10_000_000 + b"[]]}"

    with pytest.raises(FormatError, match="too many values"):
        decode(KEY, encoded(bomb), PLAIN)


@pytest.mark.parametrize(
    "wrong",
    [
        PLACED._replace(block=BlockId(0)),
        PLACED._replace(block=BlockId(INTEGER_MAX)),
        PLACED._replace(block=BlockId(1 << 64)),
        PLACED._replace(block=BlockId(-1)),
        PLACED._replace(plain_bytes=0),
        PLACED._replace(plain_bytes=BLOCK_BYTES_MAX + 1),
        PLACED._replace(plain_bytes=1 << 32),
        PLACED._replace(hash=HASH[1:]),
        PLACED._replace(hash=HASH + b"x"),
        PLACED._replace(pack=None),
        PLACED._replace(pack=PackId(INTEGER_MAX)),
        PLACED._replace(pack_offset=None),
        PLACED._replace(pack_offset=PACK_BYTES_MAX - 899),
        PLACED._replace(pack_offset=(1 << 64) - 1),
        PLACED._replace(stored_bytes=None),
        PLACED._replace(stored_bytes=0),
        PLACED._replace(stored_bytes=PACK_BYTES_MAX),
        NOWHERE._replace(hash=HASH),
        NOWHERE._replace(pack=PackId(0)),
        NOWHERE._replace(pack_offset=0),
        NOWHERE._replace(pack_offset=1),
        NOWHERE._replace(stored_bytes=1),
        NOWHERE._replace(block=PLACED.block),
    ],
    ids=str,
)
def test_impossible_block_locations_are_not_encoded(wrong: Location) -> None:
    """A block location that would change in a round trip is rejected before it is encoded."""
    section = Section(b"", (PLACED._replace(block=BlockId(9)), PLACED, wrong)[-2:])

    with pytest.raises(FormatError):
        encode_part(part_key(PREFIX, 0), section, PLAIN)
    with pytest.raises(FormatError):
        encode(replace(GROUP, section=section), PLAIN)


LOCATION = struct.Struct(">QIQQI32s")


@pytest.mark.parametrize(
    "row",
    [
        (0, 4096, 2, 100, 900, HASH),
        (INTEGER_MAX, 4096, 2, 100, 900, HASH),
        (5, 0, 2, 100, 900, HASH),
        (5, BLOCK_BYTES_MAX + 1, 2, 100, 900, HASH),
        (5, 4096, INTEGER_MAX, 100, 900, HASH),
        (5, 4096, 2, PACK_BYTES_MAX, 1, HASH),
        (5, 4096, 2, (1 << 64) - 1, 900, HASH),
        (5, 4096, 2, 100, 0, HASH),
        (5, 4096, 2, 0, PACK_BYTES_MAX + 1, HASH),
        (5, 4096, 0, 1, 0, bytes(32)),
        (5, 4096, 0, 0, 1, bytes(32)),
        (5, 4096, 0, 0, 0, HASH),
    ],
    ids=str,
)
def test_impossible_block_locations_are_not_decoded(
    row: tuple[int, int, int, int, int, bytes],
) -> None:
    """A block location must lie within its pack, and its numbers must fit into SQLite integers."""
    with pytest.raises(FormatError):
        decode_section("x", struct.pack(">I", 1) + LOCATION.pack(*row))


def test_block_location_with_the_largest_valid_numbers_is_accepted() -> None:
    largest = Location(BlockId(LAST), BLOCK_BYTES_MAX, b"\xff" * 32, PackId(LAST), 1, 2)._replace(
        pack_offset=PACK_BYTES_MAX - 2
    )
    section = Section(b"", (largest,))

    assert decode_section("x", encode_section(section)) == section


def test_oversized_changelog_section_is_refused() -> None:
    """A changelog section is rejected if it has too many locations or too large a changeset."""
    longest = Section(bytes(CHANGELOG_SECTION_BYTES_MAX - 4), ())
    assert decode_section("x", encode_section(longest)) == longest

    with pytest.raises(FormatError, match="impossible length"):
        decode_section("x", encode_section(longest) + b"x")
    with pytest.raises(FormatError, match="locations of too many blocks"):
        decode_section("x", struct.pack(">I", CHANGELOG_LOCATIONS_MAX + 1) + bytes(100))
    with pytest.raises(FormatError, match="before its last location"):
        decode_section("x", encode_section(SECTION)[:130])
    with pytest.raises(FormatError, match="impossible length"):
        encode_part(
            part_key(PREFIX, 0), longest._replace(changeset=longest.changeset + b"x"), PLAIN
        )


@pytest.mark.parametrize(
    "other",
    [
        SECTION._replace(changeset=SECTION.changeset + b"x"),
        SECTION._replace(changeset=SECTION.changeset[:-1]),
        SECTION._replace(changeset=b"C" + SECTION.changeset[1:]),
        SECTION._replace(locations=SECTION.locations[:-1]),
        SECTION._replace(locations=SECTION.locations[::-1]),
        SECTION._replace(locations=(SECTION.locations[0]._replace(plain_bytes=7), NOWHERE)),
        NO_CHANGES,
    ],
)
def test_changelog_section_that_would_be_decoded_differently_is_refused(other: Section) -> None:
    """A changelog is stored only if decoding returns the changes that were encoded."""
    require_section("x", memoryview(encode_section(other)), other)
    for data, section in ((SECTION, other), (other, SECTION)):
        with pytest.raises(FormatError, match="decodes to other values"):
            require_section("x", memoryview(encode_section(data)), section)


def test_computed_length_of_a_changelog_section_equals_its_encoded_length() -> None:
    assert section_bytes(2, len(SECTION.changeset)) == len(encode_section(SECTION))
    assert section_bytes(0, 0) == len(encode_section(NO_CHANGES))


def test_largest_possible_changelog_fits_into_one_envelope() -> None:
    """The largest changelog has object keys, numbers and item counts at their limits."""
    epoch, txg = INTEGER_MAX, LAST
    part = PartRef(part_key(part_prefix(Txg(txg), Epoch(epoch), RANDOM), 0), NO_HASH)
    note = PackNote(PackId(txg), new_key(Epoch(epoch), bytes(16)), PACK_BYTES_MAX, PackState.STORED)
    few = replace(GROUP, txg=Txg(txg), epoch=Epoch(epoch), parts=(), packs=(), forgotten=())

    def grown(**lists: Any) -> int:
        more = replace(few, **{name: 2 * value for name, value in lists.items()})
        return len(changelog.dump_header(more)) - len(changelog.dump_header(replace(few, **lists)))

    assert (
        len(changelog.dump_header(few))
        + 100
        + CHANGELOG_PARTS_MAX * grown(parts=(part,))
        + CHANGELOG_PACKS_MAX * (grown(packs=(note,)) + grown(forgotten=(PackId(txg),)))
        + CHANGELOG_SECTION_BYTES_MAX
        < ENVELOPE_BYTES_MAX
    )


@both
def test_changelog_or_part_with_a_flipped_bit_or_a_wrong_length_is_refused(
    keyring: Keyring,
) -> None:
    link = encode(GROUP, keyring)
    part = encode_part(part_key(PREFIX, 0), SECTION, keyring)
    ref = PartRef(part_key(PREFIX, 0), content_hash(part))

    for damaged in damages(link):
        with pytest.raises(FormatError):
            decode(KEY, damaged, keyring)
    for damaged in damages(part):
        with pytest.raises(FormatError):
            decode_part(ref, damaged, keyring)
        # The reference has the hash of the damaged bytes, but the part is still rejected.
        with pytest.raises(FormatError):
            decode_part(PartRef(ref.key, content_hash(damaged)), damaged, keyring)


def damages(data: bytes) -> list[bytes]:
    """Return variants of *data*: with a flipped bit in each byte, truncated, and extended."""
    flips = [flipped(data, at, at % 8) for at in range(len(data))]
    return [*flips, *(data[:end] for end in range(len(data))), data + b"\0", data + data]


@both
def test_renamed_changelog_is_refused(keyring: Keyring) -> None:
    """A changelog copied to the key of another txg is rejected, whether encrypted or plain."""
    with pytest.raises(FormatError):
        decode(key_of(Txg(8)), encode(GROUP, keyring), keyring)

    payload = envelope.decode(b"changes", KEY, encode(GROUP, keyring), keyring)
    forged = envelope.encode(b"changes", key_of(Txg(8)), payload, keyring)
    with pytest.raises(FormatError, match="differs from the txg in its name"):
        decode(key_of(Txg(8)), forged, keyring)


@both
def test_changelog_part_with_a_wrong_hash_or_name_or_kind_is_refused(keyring: Keyring) -> None:
    """A part is accepted only if its key, hash and kind match the reference in the changelog."""
    key, other = part_key(PREFIX, 0), part_key(PREFIX, 1)
    data = encode_part(key, SECTION, keyring)

    with pytest.raises(FormatError, match="does not match the hash"):
        decode_part(PartRef(key, NO_HASH), data, keyring)
    with pytest.raises(FormatError):
        decode_part(PartRef(other, content_hash(data)), data, keyring)
    for kind in (b"changes", b"piece"):
        forged = envelope.encode(kind, key, encode_section(SECTION), keyring)
        with pytest.raises(FormatError, match="is not of the kind"):
            decode_part(PartRef(key, content_hash(forged)), forged, keyring)


def test_object_of_another_kind_or_filesystem_is_refused_as_a_changelog() -> None:
    payload = envelope.decode(b"changes", KEY, encode(GROUP, PLAIN), PLAIN)

    with pytest.raises(FormatError, match="is not of the kind"):
        decode(KEY, envelope.encode(b"manifest", KEY, payload, PLAIN), PLAIN)
    with pytest.raises(FormatError):
        decode(KEY, encode(GROUP, PLAIN), Keyring(None, bytes([1] * 32)))
    with pytest.raises(FormatError):
        decode(KEY, encode(GROUP, ENCRYPTED), Keyring.from_master(bytes(32)))
    with pytest.raises(FormatError, match="either the object or its filesystem"):
        decode(KEY, encode(GROUP, PLAIN), ENCRYPTED)
    with pytest.raises(FormatError, match="either the object or its filesystem"):
        decode(KEY, encode(GROUP, ENCRYPTED), PLAIN)


def test_changelog_keys_can_be_parsed_and_sort_by_txg() -> None:
    part = part_key(part_prefix(Txg(12), Epoch(3), RANDOM), 7)

    check_key(KEY)
    check_key(part)
    check_key(part_key(part_prefix(Txg(LAST), Epoch(INTEGER_MAX), RANDOM), 0))
    assert KEY == "changelog/000000000007"
    assert part == "changelog-part/000000000012-3-0001020304050607/000007"
    assert parse_key(KEY) == 7
    assert parse_part_key(part) == 12
    assert parse_key(key_of(Txg(LAST))) == LAST
    assert key_of(Txg(9)) < key_of(Txg(10)) < key_of(Txg(100))


@pytest.mark.parametrize(
    "key",
    [
        "",
        "changelog/",
        "changelog/7",
        "changelog/0000000000007",
        "changelog/000000000000",
        "changelog/00000000000x",
        "changelog/000000000007\n",
        "changelog/٠٠٠٠٠٠٠٠٠٠٠٧",
        "changelog/9223372036854775807",
        "changelog/99999999999999999999",
        KEY + "/x",
        "x" + KEY,
        PREFIX,
        part_key(PREFIX, 0).replace("-3-", "-03-"),
        part_key(PREFIX, 0).replace("-3-", "-9223372036854775808-"),
        part_key(PREFIX, 0).replace("000000000007", "000000000000"),
        part_key(PREFIX, 0) + "0",
        part_key(PREFIX, 0).upper(),
    ],
)
def test_malformed_key_is_not_parsed_as_a_changelog_or_part(key: str) -> None:
    assert parse_key(key) is None
    assert parse_part_key(key) is None


# Three version 1 changelogs and one part, as stored in buckets.
GROUP_1 = bytes.fromhex(
    """
    533346534d455441000100006368616e67657300000003c3000000000000000000000000000000000128b52f
    fd60c3027d1000c6626b2cf090360f2c067e83b807ad27fc6aa4088a93db443691b534bb461342d11f58a40b
    471fcaee0f9ba522ff43025e005900560032726da5537e84cd635c63deecb4a55004352fa52393487a9a9dae
    d0e3a2792910c80462a7ed23311ecd4ba1e0e59897c230af09761ab21249f448d163a7a52882dce6a53876da
    824611dbbc14878c9d9ea08a6a25d24ab4796d501e940acd6470de481d84ffcf60635abc134677b679cd55db
    c8c85e73af69e6f35ea04322c9c8f24410fb40d282b64492110ae6e59c2dccc118afc6fcfabaf5ead4a74b7f
    8f0ebdf1e78c3b6fcedc7d710e7707f3521a33af89e98206d0fa63ef609d6fdfff31b3bdb3ccabb531e78ca3
    f3fa9c9161a6accd4e4f93e89161251abfd2b7cca39131cb2efcf6fcff9d5267efb38f4abf3f9f3af3d63987
    3f6123db73f739fc1a59db466d735f6c626b4d36e832538648e21bf1a496522a4261b860a102850912224078
    e0a00183050a2412203860a0c022304040044480870600d5e141a9aa1a4a422908d5504a71588b6bcc976b2b
    5da6fcb83c2693e6a54076fad120695e0a63a7a1e8314936a34262580b3a55ff2a9b73f332adfe47299f0525
    20700209a8ee76bf0d003cc5e1b78141d638cc8941f50b1844be5f48808278bf84a066283d03284e99c89113
    04f4c7440c1bcc426e3c6696b1563f648facfa11a20cf859a4f18b9cd0e2aaf6c34efb926d7416a991dab826
    68842f0cc2f1b5401ee46247f496f69817402d5301fb81820c834b19b860b7b39bb935ed1b63
    """
)
FENCE_1 = bytes.fromhex(
    """
    533346534d455441000100006368616e6765730000000178000000000000000000000000000000000128b52f
    fd6078005d060082cc272040875807ae7ce80570c3d2f89067e9f25514b5ab8ad2c222cb6e1aa3b8229ced29
    a574a087424890a359a61d0976301c2e8a6e558bd79d8279ab4abcfea093711b08c65845933282aeb1714606
    c9456350b34c4bb08361112804288404b9d7b73df86e55dff6b6b9d799e716b7aae7899ed7d7610c77ab2218
    f0fadb39a11361c1eb11c2a7b955295e573408edad0a5912afcb876076b28ded56030820a50f004e18547101
    52e3eb32028cda3d1c5a288f60670da0d04c4c2421568daa0d66261a615e1804e00156af776d374a38b23566
    397097ad80f64e35977102fc0e9b5234beebc7c0fd9b
    """
)
IMAGE_1 = bytes.fromhex(
    """
    533346534d455441000100006368616e67657300000001f1000000000000000000000000000000000128b52f
    fd60f10005090086523b2690b56dffffffffff330aa29835b1edfeaf7ebbb932d96b77b2422dd24b4dfe8aa5
    c98b6e480630002f002e0090ffe00a8757ad026121d38fa27a78aab2909f5a0326af5ac94246c4ba785eb5fa
    b1850c5183fcc8ff89bc6aa00020a5ed7c411639e55b2273e99ed2ee2dcd19c910e5314c36efaac511f4d3a1
    ae18bc76ad74eba49166dd7d24c71bac226cf3656c9c599e535a82b0e685fc9156caab164396d449f0aa5558
    c5ec63bb6eb335adc5d7288e30d3b167fe8f496429a544a08e04617dcc97f1689c590e87c1e055eb2de48340
    c4ab165bc8b43ad0f30d832b1e112188519dc63fd1e30b28117d1112004e1854710152e3eb32028cda3d1c5a
    587e006c0aa0d04c4c24daa71a551b9c411e1f3e9b2a18014827cc7680003c555ede78ff4ac0d311bcfeb4be
    801ec7070d7bf499677f636d6385db24b544b4
    """
)
PART_1 = bytes.fromhex(
    """
    533346534d45544100010000706172740000000000000093000000000000000000000000000000000128b52f
    fd2093a5020074040000000200050000100002006400000384000102030405060708090a0b0c0d0e0f101112
    131415161718191a1b1c1d1e1f00060000000a006368616e676573206f6620726f777305100038c5f80d9cf5
    a0051e5f04253c037576338ea395f188bbef9c1dd06653df6ce813ea0e06f783ab3a
    """
)


@pytest.mark.parametrize(
    ("data", "link"),
    [(GROUP_1, GROUP), (FENCE_1, FENCE), (IMAGE_1, IMAGE)],
    ids=["group", "fence", "image"],
)
def test_changelogs_of_version_1_can_still_be_read(data: bytes, link: Changelog) -> None:
    assert decode(KEY, data, PLAIN) == link


def test_changelog_parts_of_version_1_can_still_be_read() -> None:
    ref = PartRef(part_key(PREFIX, 0), content_hash(PART_1))

    assert decode_part(ref, PART_1, PLAIN) == SECTION
