"""Envelopes: the sealed format of most kinds of objects."""

import random
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import envelope
from s3fs_meta.codec.envelope import decode, encode
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import ENVELOPE_BYTES_MAX
from s3fs_meta.model import ObjectKey
from tests.codec.keyrings import ENCRYPTED, PLAIN, both
from tests.damage import flipped

KEY = ObjectKey("image/1-1-00/000000")
PAYLOAD = b"page of a database " * 5


@both
@pytest.mark.parametrize("payload", [b"", b"x", PAYLOAD, random.Random(1).randbytes(300)], ids=len)
def test_opened_envelope_contains_the_sealed_payload(keyring: Keyring, payload: bytes) -> None:
    assert decode(b"piece", KEY, encode(b"piece", KEY, payload, keyring), keyring) == payload


@both
def test_envelope_can_be_sealed_and_opened_with_memoryviews(keyring: Keyring) -> None:
    data = encode(b"piece", KEY, memoryview(PAYLOAD), keyring, level=3)

    assert decode(b"piece", KEY, memoryview(data), keyring) == PAYLOAD


def test_encrypted_envelopes_with_equal_payloads_differ() -> None:
    """Two encrypted envelopes with equal payloads differ, and neither contains the payload."""
    first, second = (encode(b"piece", KEY, PAYLOAD, ENCRYPTED) for _ in range(2))

    assert b"database" not in first
    assert first[-50:] != second[-50:]


def test_plain_envelopes_with_equal_payloads_are_equal() -> None:
    assert encode(b"piece", KEY, PAYLOAD, PLAIN) == encode(b"piece", KEY, PAYLOAD, PLAIN)


@both
def test_envelope_can_be_opened_only_with_its_own_kind_and_name_and_filesystem(
    keyring: Keyring,
) -> None:
    """An envelope that was moved to another key or filesystem cannot be opened."""
    data = encode(b"piece", KEY, PAYLOAD, keyring)
    other = Keyring.from_master(bytes(32)) if keyring.encrypted else Keyring(None, bytes([1]) * 32)

    for wrong in [
        (b"manifest", KEY, keyring),
        (b"piec", KEY, keyring),
        (b"piece", ObjectKey("image/1-1-00/000001"), keyring),
        (b"piece", KEY, other),
        (b"piece", KEY, PLAIN if keyring.encrypted else ENCRYPTED),
    ]:
        with pytest.raises(FormatError):
            decode(wrong[0], wrong[1], data, wrong[2])


def test_encrypted_filesystem_refuses_a_plain_object() -> None:
    with pytest.raises(FormatError, match="either the object or its filesystem"):
        decode(b"piece", KEY, encode(b"piece", KEY, PAYLOAD, PLAIN), ENCRYPTED)


@both
def test_every_flipped_bit_of_an_envelope_is_detected(keyring: Keyring) -> None:
    data = encode(b"piece", KEY, PAYLOAD, keyring)

    for at in range(len(data) * 8):
        with pytest.raises(FormatError):
            decode(b"piece", KEY, flipped(data, at // 8, at % 8), keyring)


@both
def test_truncated_or_extended_envelope_is_refused(keyring: Keyring) -> None:
    data = encode(b"piece", KEY, PAYLOAD, keyring)

    for cut in range(len(data)):
        for damaged in (data[:cut], data[cut + 1 :]):
            with pytest.raises(FormatError):
                decode(b"piece", KEY, damaged, keyring)
    for extra in (b"\0", b"x" * 40, data):
        with pytest.raises(FormatError):
            decode(b"piece", KEY, data + extra, keyring)


@both
def test_error_about_a_newer_envelope_version_advises_an_upgrade(keyring: Keyring) -> None:
    """An envelope with an unknown version was written by a newer program, unless it is damaged."""
    data = encode(b"piece", KEY, PAYLOAD, keyring)

    for at in (9, 10, 11):
        newer = bytearray(data)
        newer[at] |= 2
        newer[-1] ^= 1  # A newer program computes a different checksum over its header.
        with pytest.raises(NewerFormatError, match="upgrade"):
            decode(b"piece", KEY, bytes(newer), keyring)


@both
def test_error_about_a_damaged_envelope_version_advises_no_upgrade(keyring: Keyring) -> None:
    """If an envelope matches its checksum except for the version field, this field is damaged."""
    data = encode(b"piece", KEY, PAYLOAD, keyring)

    for at in range(8, 12):  # Bytes 8 to 11 of an envelope are the version and the flags.
        with pytest.raises(FormatError) as refused:
            decode(b"piece", KEY, flipped(data, at, 3), keyring)
        assert not isinstance(refused.value, NewerFormatError)


def test_oversized_payload_of_an_envelope_allocates_no_memory() -> None:
    """An envelope that declares too large a payload is rejected before memory is allocated."""
    packed = b"\1" + zstandard.ZstdCompressor().compress(bytes(ENVELOPE_BYTES_MAX + 1))
    header = envelope.HEADER.pack(b"S3FSMETA", 1, 0, b"piece", ENVELOPE_BYTES_MAX + 1, bytes(16))
    data = header + packed + envelope.checksum_of(PLAIN, header, KEY, packed)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="too large"):
            decode(b"piece", KEY, data, PLAIN)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20


def test_envelope_larger_than_the_maximum_is_refused() -> None:
    data = encode(b"piece", KEY, PAYLOAD, PLAIN) + bytes(ENVELOPE_BYTES_MAX)

    with pytest.raises(FormatError, match="too large"):
        decode(b"piece", KEY, data, PLAIN)


def test_payload_too_large_to_be_opened_again_is_not_sealed() -> None:
    with pytest.raises(AssertionError):
        encode(b"piece", KEY, bytes(ENVELOPE_BYTES_MAX + 1), PLAIN)


@settings(derandomize=True, max_examples=60)
@given(st.binary(max_size=1000), st.integers(1, 100), st.booleans(), st.integers(1, 4))
def test_random_payload_is_unchanged_after_its_envelope_is_sealed_and_opened(
    data: bytes, times: int, encrypted: bool, level: int
) -> None:
    keyring = ENCRYPTED if encrypted else PLAIN
    encoded = encode(b"piece", KEY, data * times, keyring, level=level)

    assert decode(b"piece", KEY, encoded, keyring) == data * times


@settings(derandomize=True, max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 12), st.booleans())
def test_random_bytes_are_refused_as_an_envelope(
    data: bytes, prefix_bytes: int, encrypted: bool
) -> None:
    """For random bytes, the parser of envelopes raises no error but FormatError."""
    good = b"S3FSMETA" + bytes([0, 1, 0, int(encrypted)])
    with pytest.raises(FormatError):
        decode(b"piece", KEY, good[:prefix_bytes] + data, ENCRYPTED if encrypted else PLAIN)


@settings(derandomize=True, max_examples=200)
@given(st.binary(max_size=100), st.integers(0, (1 << 32) - 1), st.integers(0, 3))
def test_authentic_envelope_with_arbitrary_fields_is_refused_unless_consistent(
    body: bytes, payload_bytes: int, method: int
) -> None:
    """An authentic envelope is either rejected or decoded to its declared length."""
    header = envelope.HEADER.pack(b"S3FSMETA", 1, 0, b"piece", payload_bytes, bytes(16))
    packed = bytes([method]) + body
    data = header + packed + envelope.checksum_of(PLAIN, header, KEY, packed)
    try:
        payload = decode(b"piece", KEY, data, PLAIN)
    except FormatError:
        return
    assert len(payload) == payload_bytes


PLAIN_ENVELOPE_1 = bytes.fromhex(
    "533346534d45544100010000706965636500000000000039000000000000000000000000000000000128b52ffd20"
    "39cd00009870616765206f662061206461746162617365200100db33c3a9da34bee6da542eb980e4583248edf6fe"
    "7864dba66a3bae24644820c8091d53"
)
ENCRYPTED_ENVELOPE_1 = bytes.fromhex(
    "533346534d45544100010001706965636500000000000039020202020202020202020202020202022c7a932457d5"
    "cba1051be3fe0913e92b4c0e220051e6a1cf0ba2a7a58c0e2dbfbb0bd38be39af5db4a51b27ab8bb8fa12b4bb9"
)


@pytest.mark.parametrize(
    ("keyring", "data"), [(PLAIN, PLAIN_ENVELOPE_1), (ENCRYPTED, ENCRYPTED_ENVELOPE_1)]
)
def test_envelopes_of_version_1_can_still_be_read(keyring: Keyring, data: bytes) -> None:
    assert decode(b"piece", KEY, data, keyring) == b"page of a database " * 3
