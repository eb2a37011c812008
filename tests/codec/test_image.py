"""Manifests of images, and the image pieces that they list."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import envelope, image
from s3fs_meta.codec.fields import dump
from s3fs_meta.codec.image import (
    NO_HASH,
    Manifest,
    ManifestRef,
    Piece,
    content_hash,
    decode,
    decode_piece,
    encode,
    encode_piece,
    image_prefix,
    manifest_key,
    parse_manifest_key,
    parse_piece_key,
    piece_key,
)
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import IMAGE_PIECE_BYTES
from s3fs_meta.model import Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import check_key
from tests.codec.images import KEY, MANIFEST, MANIFEST_1, OLD_KEY, PREFIX, RANDOM
from tests.codec.json_values import json_values
from tests.codec.keyrings import PLAIN, both
from tests.damage import flipped


@both
@pytest.mark.parametrize("manifest", [MANIFEST, replace(MANIFEST, previous=None)])
def test_decoded_image_manifest_equals_the_encoded_manifest(
    keyring: Keyring, manifest: Manifest
) -> None:
    assert decode(KEY, encode(manifest, KEY, keyring), keyring) == manifest


@pytest.mark.parametrize(
    "wrong",
    [
        {"txg": 6},
        {"epoch": 3},
        {"uuid": "no uuid"},
        {"schema_version": 0},
        {"page_size": 1000, "database_bytes": 12000},
        {"page_size": 256},
        {"page_size": True},
        {"database_bytes": 8192},
        {"database_bytes": 12289},
        {"created_ns": -1},
        {"previous": ManifestRef(KEY, content_hash(b""))},
        {"previous": ManifestRef(ObjectKey("lease"), content_hash(b""))},
        {"previous": ManifestRef(OLD_KEY, "")},
        {"pieces": ()},
        {"pieces": (Piece(ObjectKey("lease"), 12288, content_hash(b"")),)},
        {"pieces": (Piece(piece_key(PREFIX, 0), 12288, "00"),)},
        {
            "pieces": (Piece(piece_key(PREFIX, 0), IMAGE_PIECE_BYTES + 4096, content_hash(b"")),),
            "database_bytes": IMAGE_PIECE_BYTES + 4096,
        },
        {
            "pieces": (
                Piece(piece_key(PREFIX, 0), 16384, content_hash(b"")),
                Piece(piece_key(PREFIX, 1), -4096, content_hash(b"")),
            )
        },
        {"pieces": (Piece(piece_key(PREFIX, 1), 12288, content_hash(b"")),)},
        {
            "pieces": (
                Piece(piece_key(PREFIX, 0), 8192, content_hash(b"")),
                Piece(piece_key(PREFIX, 0), 4096, content_hash(b"")),
            )
        },
        {"inodes": -1},
        {"file_bytes": 1 << 63},
        {"changelog": ""},
        {"changelog": "x" * 64},
    ],
    ids=str,
)
def test_inconsistent_image_manifest_is_neither_written_nor_read(wrong: dict[str, object]) -> None:
    """A manifest whose fields contradict each other or its key is neither encoded nor decoded."""
    # mypy cannot check keyword arguments that come from a dict.
    manifest = replace(MANIFEST, **wrong)  # type: ignore[arg-type]
    data = envelope.encode(b"manifest", KEY, image.dump_manifest(manifest), PLAIN)

    with pytest.raises(FormatError):
        decode(KEY, data, PLAIN)
    with pytest.raises(FormatError):
        encode(manifest, KEY, PLAIN)


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[]", b'{"version": 1}', b"[" * 100_000, bytes(100)], ids=len
)
def test_image_manifest_with_an_invalid_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(FormatError):
        decode(KEY, envelope.encode(b"manifest", KEY, payload, PLAIN), PLAIN)


@pytest.mark.parametrize("pieces", [[1], [[]], [["a", 1]], {"a": 1}, [{"key": "a"}]], ids=str)
def test_image_manifest_with_a_malformed_list_of_pieces_is_refused(pieces: object) -> None:
    payload = image.dump_manifest(MANIFEST).replace(
        dump({"pieces": [list(piece) for piece in MANIFEST.pieces]})[3:-2],
        dump({"pieces": pieces})[3:-2],
    )
    assert payload != image.dump_manifest(MANIFEST)

    with pytest.raises(FormatError):
        decode(KEY, envelope.encode(b"manifest", KEY, payload, PLAIN), PLAIN)


def test_error_about_a_newer_manifest_version_advises_an_upgrade() -> None:
    payload = image.dump_manifest(MANIFEST).replace(b'"version": 2', b'"version": 3')

    with pytest.raises(NewerFormatError, match="upgrade"):
        decode(KEY, envelope.encode(b"manifest", KEY, payload, PLAIN), PLAIN)


@both
def test_renamed_image_manifest_is_refused(keyring: Keyring) -> None:
    with pytest.raises(FormatError):
        decode(OLD_KEY, encode(MANIFEST, KEY, keyring), keyring)


@both
def test_decoded_image_piece_equals_the_encoded_piece(keyring: Keyring) -> None:
    content = b"page" * 2048
    piece = Piece(piece_key(PREFIX, 0), len(content), content_hash(content))
    data = encode_piece(piece.key, memoryview(content), keyring)

    assert decode_piece(piece, data, keyring) == content


@both
def test_image_piece_with_the_wrong_hash_is_refused(keyring: Keyring) -> None:
    """An authentic image piece is rejected if the manifest has a different hash."""
    content = b"page" * 2048
    piece = Piece(piece_key(PREFIX, 0), len(content), content_hash(content))

    for other in (b"pagE" * 2048, content[:-1], content + b"p"):
        with pytest.raises(FormatError, match="does not match the hash"):
            decode_piece(piece, encode_piece(piece.key, other, keyring), keyring)


def test_image_keys_can_be_parsed_and_sort_by_txg() -> None:
    """The keys of image manifests and image pieces contain the txg and the epoch."""
    key = manifest_key(Txg(12), Epoch(3), RANDOM)
    piece = piece_key(image_prefix(Txg(12), Epoch(3), RANDOM), 7)

    check_key(key)
    check_key(piece)
    assert key == "image/000000000012-3-0001020304050607/manifest"
    assert parse_manifest_key(key) == (12, 3, "0001020304050607")
    assert parse_piece_key(piece) == (12, 3, "0001020304050607")
    assert manifest_key(Txg(9), Epoch(3), RANDOM) < key < manifest_key(Txg(100), Epoch(1), RANDOM)


def test_image_key_with_a_txg_of_more_than_twelve_digits_is_parsed() -> None:
    """A txg of more than twelve digits gives a valid key, but listings do not sort it by number."""
    key = manifest_key(Txg(10**13), Epoch(1), RANDOM)

    assert parse_manifest_key(key) == (10**13, 1, RANDOM.hex())


@pytest.mark.parametrize(
    "key", ["", KEY + "x", "x" + KEY, KEY.replace("-2-", "-02-"), KEY.replace("/0", "/"), PREFIX]
)
def test_malformed_key_is_not_parsed_as_an_image_manifest_or_piece(key: str) -> None:
    assert parse_manifest_key(key) is None
    assert parse_piece_key(key) is None


SOUND = json.loads(image.dump_manifest(MANIFEST))


@settings(derandomize=True, max_examples=80)
@given(st.sampled_from(sorted([*SOUND, "x"])), json_values)
def test_arbitrary_value_in_an_image_manifest_is_refused_or_stays_unchanged(
    name: str, value: object
) -> None:
    """For a random value, the parser of image manifests raises no error but FormatError."""
    payload = dump({**SOUND, name: value})
    try:
        read = decode(KEY, envelope.encode(b"manifest", KEY, payload, PLAIN), PLAIN)
    except FormatError:
        return
    assert json.loads(image.dump_manifest(read)) == {**SOUND, name: value}


@settings(derandomize=True, max_examples=80)
@given(st.integers(0, 1), st.integers(0, 2), json_values)
def test_arbitrary_value_in_a_list_of_image_pieces_is_refused_or_stays_unchanged(
    number: int, column: int, value: object
) -> None:
    pieces = [list(piece) for piece in SOUND["pieces"]]
    pieces[number][column] = value
    payload = dump({**SOUND, "pieces": pieces})
    try:
        read = decode(KEY, envelope.encode(b"manifest", KEY, payload, PLAIN), PLAIN)
    except FormatError:
        return
    assert json.loads(image.dump_manifest(read))["pieces"] == pieces


@both
def test_flipped_bit_in_every_byte_of_an_image_manifest_or_piece_is_detected(
    keyring: Keyring,
) -> None:
    content = b"page" * 64
    piece = Piece(piece_key(PREFIX, 0), len(content), content_hash(content))
    manifest_data = encode(MANIFEST, KEY, keyring)
    piece_data = encode_piece(piece.key, content, keyring)

    for at in range(len(manifest_data)):
        with pytest.raises(FormatError):
            decode(KEY, flipped(manifest_data, at, at % 8), keyring)
        with pytest.raises(FormatError):
            decode(KEY, manifest_data[:at], keyring)
    for at in range(len(piece_data)):
        with pytest.raises(FormatError):
            decode_piece(piece, flipped(piece_data, at, at % 8), keyring)


def test_image_manifests_of_version_1_can_still_be_read() -> None:
    data = envelope.encode(b"manifest", KEY, MANIFEST_1, PLAIN)

    assert decode(KEY, data, PLAIN) == replace(MANIFEST, changelog=NO_HASH)


def test_image_manifest_of_version_1_with_a_changelog_field_is_refused() -> None:
    """A manifest of version 1 has no field "changelog", which version 2 introduced."""
    payload = dump({**json.loads(MANIFEST_1), "changelog": NO_HASH})

    with pytest.raises(FormatError, match="unknown field"):
        decode(KEY, envelope.encode(b"manifest", KEY, payload, PLAIN), PLAIN)


MANIFEST_2 = b"""\
{
 "changelog": "9006905ffffc3c379de20ec5b560514b2054c89cb78c30d958445baae75210bb",
""" + MANIFEST_1.removeprefix(b"{\n").replace(b'"version": 1', b'"version": 2')


def test_image_manifests_of_version_2_can_still_be_read() -> None:
    data = envelope.encode(b"manifest", KEY, MANIFEST_2, PLAIN)

    assert decode(KEY, data, PLAIN) == MANIFEST


def test_image_manifest_with_too_many_values_is_refused() -> None:
    """A manifest of 10 million short values compresses to almost nothing, but uses much memory."""
    bomb = b'{"pieces": [' + b"[]," * 10_000_000 + b"[]]}"

    with pytest.raises(FormatError, match="too many values"):
        decode(KEY, envelope.encode(b"manifest", KEY, bomb, PLAIN), PLAIN)


def test_image_keys_with_oversized_numbers_are_refused() -> None:
    """SQLite cannot store 2^63, so a key with this txg or epoch does not name an image."""
    assert parse_manifest_key(KEY.replace("000000000005", "9223372036854775808")) is None
    assert parse_manifest_key(KEY.replace("-2-", "-9223372036854775808-")) is None
    assert parse_manifest_key(KEY.replace("-2-", "-9223372036854775807-")) is not None
