"""Level objects (each is a merged run of changelogs): keys, alignment and fields."""

import json
import os
import struct
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3fs_meta.codec import envelope, level
from s3fs_meta.codec.changelog import (
    NO_CHANGES,
    Location,
    Section,
    encode_section,
    section_bytes,
)
from s3fs_meta.codec.keyring import HASH_BYTES
from s3fs_meta.codec.level import decode, encode, ends_at, first_of, key_of, parse_key
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import LEVEL_FAN_OUT, LEVEL_SECTION_BYTES_MAX, LEVELS_MAX, MIB
from s3fs_meta.model import BlockId, Epoch, ObjectKey, Txg
from s3fs_meta.objects.contract import check_key
from tests.codec.changelogs import PACKS, SECTION
from tests.codec.keyrings import ENCRYPTED, PLAIN, both
from tests.codec.levels import KEY, LEVEL
from tests.damage import flipped


@both
def test_decoded_level_object_equals_the_encoded_object(keyring: Any) -> None:
    assert KEY == "level/2/000000000026-000000000050"
    assert LEVEL.first == 26
    for made in (LEVEL, replace(LEVEL, packs=(), forgotten=(), section=NO_CHANGES)):
        assert decode(KEY, encode(made, keyring), keyring) == made
    with pytest.raises(FormatError):
        decode(key_of(2, Txg(25)), encode(LEVEL, keyring), keyring)
    with pytest.raises(FormatError):
        decode(KEY, encode(LEVEL, ENCRYPTED), PLAIN)


@given(st.integers(1, 10**13))
def test_key_of_a_level_object_names_an_aligned_range_of_txgs(txg: int) -> None:
    """The key of a level object contains the first and the last txg of its changelogs."""
    for number in ends_at(Txg(txg)):
        key = key_of(number, Txg(txg))
        assert parse_key(key) == (number, txg)
        assert txg - first_of(number, Txg(txg)) + 1 == LEVEL_FAN_OUT**number
        check_key(key)
    assert list(ends_at(Txg(txg))) == [
        number for number in range(1, LEVELS_MAX + 1) if txg % LEVEL_FAN_OUT**number == 0
    ]


@pytest.mark.parametrize(
    "key",
    [
        "level/1/000000000002-000000000006",
        "level/2/000000000001-000000000005",
        "level/9/000000000001-000001953125",
        "level/0/000000000001-000000000001",
        "level/1/1-5",
        "level/1/000000000000-000000000000",
        "level/1/000000000001-000000000005/",
        "changelog/000000000008",
    ],
)
def test_malformed_key_is_not_parsed_as_a_level_object(key: str) -> None:
    assert parse_key(key) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"level": 1},
        {"last": Txg(25)},
        {"epoch": Epoch(2)},
        {"uuid": "x"},
        {"schema_version": 0},
        {"created_ns": LEVEL.first_ns},
        {"previous": ""},
        {"hash": "00"},
        {"floor": Txg(129)},
        {"packs": (PACKS[0], PACKS[0])},
        {"forgotten": (PACKS[0].pack,)},
    ],
    ids=str,
)
def test_inconsistent_level_object_is_neither_written_nor_read(wrong: dict[str, Any]) -> None:
    """A level object whose key or fields contradict each other is not encoded or decoded."""
    made = replace(LEVEL, **wrong)
    header = level.dump_header(made)
    payload = struct.pack(">I", len(header)) + header + encode_section(SECTION)

    with pytest.raises(FormatError):
        decode(KEY, envelope.encode(b"level", KEY, payload, PLAIN), PLAIN)
    if made.key == KEY:
        with pytest.raises(FormatError):
            encode(made, PLAIN)


@pytest.mark.parametrize("field", sorted(json.loads(level.dump_header(LEVEL))))
def test_level_object_without_one_of_its_fields_is_refused(field: str) -> None:
    fields = json.loads(level.dump_header(LEVEL))
    del fields[field]
    header = json.dumps(fields).encode()
    payload = struct.pack(">I", len(header)) + header + encode_section(SECTION)
    with pytest.raises(FormatError, match=field):
        decode(KEY, envelope.encode(b"level", KEY, payload, PLAIN), PLAIN)


def test_error_about_an_unknown_version_of_a_level_object_reports_no_damage() -> None:
    header = json.dumps({**json.loads(level.dump_header(LEVEL)), "version": 2}).encode()
    payload = struct.pack(">I", len(header)) + header + encode_section(SECTION)
    with pytest.raises(NewerFormatError):
        decode(KEY, envelope.encode(b"level", KEY, payload, PLAIN), PLAIN)


def test_level_object_with_an_oversized_section_or_an_invalid_payload_is_refused() -> None:
    large = SECTION._replace(changeset=bytes(LEVEL_SECTION_BYTES_MAX))
    with pytest.raises(FormatError):
        encode(replace(LEVEL, section=large), PLAIN)
    for payload in (b"", struct.pack(">I", 1 << 31), struct.pack(">I", 9) + b"{}"):
        with pytest.raises(FormatError):
            decode(KEY, envelope.encode(b"level", KEY, payload, PLAIN), PLAIN)


def test_flipped_bit_in_every_byte_of_a_level_object_is_detected() -> None:
    data = encode(LEVEL, PLAIN)
    for at in range(len(data)):
        with pytest.raises(FormatError):
            decode(ObjectKey(KEY), flipped(data, at, at % 8), PLAIN)


def test_encoding_a_level_object_does_not_copy_its_changes() -> None:
    """Encoding needs memory for the payload, its compressed form and the object, but no more."""
    locations = tuple(
        Location(BlockId(number), 4096, os.urandom(HASH_BYTES), PACKS[0].pack, 4096, 4096)
        for number in range(1, 10_001)
    )
    large = replace(LEVEL, section=Section(os.urandom(2 * MIB), locations))
    tracemalloc.start()
    try:
        data = encode(large, PLAIN)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert decode(KEY, data, PLAIN) == large
    assert peak_bytes < 3.3 * section_bytes(len(locations), 2 * MIB)
