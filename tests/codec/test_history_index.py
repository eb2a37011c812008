"""Objects of the history index: their keys, alignment, columns and fields."""

import json
import struct
from array import array
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3fs_meta.codec import envelope, history_index
from s3fs_meta.codec.history_index import (
    RUNS,
    ChangedInode,
    Inodes,
    RemovedName,
    RemovedNames,
    decode,
    dump_header,
    encode,
)
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import HISTORY_INODES_MAX, HISTORY_NAMES_MAX
from s3fs_meta.model import Cookie, Ino, ObjectKey, Txg
from tests.codec.history_indexes import INDEX, INODES, KEY, NAMES
from tests.codec.keyrings import ENCRYPTED, PLAIN, both
from tests.damage import flipped

_INOS = st.integers(1, 2**63 - 2)
_MASKS = st.integers(1, history_index.ALL_BITS)
_NAMES = st.binary(max_size=255).filter(lambda name: not {47, 0} & set(name))


def _payload(header: dict[str, Any], columns: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack(">I", len(text)) + text + columns


def _header(**changed: Any) -> dict[str, Any]:
    return {**json.loads(dump_header(INDEX)), **changed}


def _columns() -> bytes:
    payload = envelope.decode(b"history", KEY, encode(INDEX, PLAIN), PLAIN)
    (length,) = struct.unpack_from(">I", payload)
    return bytes(payload[4 + length :])


def _refused(payload: bytes, key: ObjectKey = KEY) -> None:
    with pytest.raises(FormatError):
        decode(key, envelope.encode(b"history", key, payload, PLAIN), PLAIN)


@both
def test_decoded_history_index_object_equals_the_encoded_object(keyring: Any) -> None:
    assert KEY == "history/2/000000001025-000000002048"
    assert INDEX.first == 1025
    for made in (INDEX, replace(INDEX, inodes=Inodes.of(()), names=RemovedNames.of(()), unknown=0)):
        assert decode(KEY, encode(made, keyring), keyring) == made
    with pytest.raises(FormatError):
        decode(RUNS.key_of(2, Txg(1024)), encode(INDEX, keyring), keyring)
    with pytest.raises(FormatError):
        decode(KEY, encode(INDEX, ENCRYPTED), PLAIN)


@given(
    st.lists(st.tuples(_INOS, _MASKS, _MASKS), unique_by=lambda row: row[0]),
    st.lists(st.tuples(_INOS, _NAMES, st.integers(256, 2**63 - 2), _INOS, _MASKS)),
)
def test_valid_rows_are_unchanged_after_encoding_as_a_history_index_object(
    inodes: list[tuple[int, int, int]], names: list[tuple[int, bytes, int, int, int]]
) -> None:
    rows = {
        (parent, name, 0 if name else cookie, ino): mask
        for parent, name, cookie, ino, mask in names
    }
    made = replace(
        INDEX,
        inodes=Inodes.of(ChangedInode(Ino(ino), *masks) for ino, *masks in sorted(inodes)),
        names=RemovedNames.of(
            RemovedName(Ino(parent), name, Cookie(cookie), Ino(ino), mask)
            for (parent, name, cookie, ino), mask in sorted(rows.items())
        ),
    )
    assert decode(KEY, encode(made, PLAIN), PLAIN) == made


def test_inode_in_a_history_index_object_is_found_by_its_number() -> None:
    assert [INDEX.inodes.find(row.ino) for row in INODES] == list(INODES)
    assert INDEX.inodes.find(Ino(8)) is None
    assert INDEX.inodes.find(Ino(2**62 + 1)) is None


def test_removed_names_of_a_directory_are_listed_in_a_history_index_object() -> None:
    names = INDEX.names
    assert list(names) == list(NAMES)
    assert list(names.beginning_at(Ino(1))) == list(NAMES)
    assert list(names.beginning_at(Ino(1), b"draft.txt")) == list(NAMES[1:])
    assert list(names.beginning_at(Ino(2))) == list(NAMES[3:])
    assert not list(names.beginning_at(Ino(8)))
    assert list(names.of_name(Ino(1), b"draft.txt")) == list(NAMES[1:3])
    assert list(names.of_name(Ino(1), b"")) == [NAMES[0]]
    assert not list(names.of_name(Ino(7), b"draft.txt"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"level": 1},
        {"level": 5},
        {"last": 1024},
        {"uuid": "x"},
        {"first_ns": -1},
        {"created_ns": None},
        {"previous": ""},
        {"hash": "00"},
        {"unknown": 1 << 32},
        {"inodes": 2},
        {"inodes": HISTORY_INODES_MAX + 1},
        {"names": 3},
        {"names": HISTORY_NAMES_MAX + 1},
        {"more": 1},
    ],
    ids=str,
)
def test_history_index_object_with_a_wrong_field_is_refused(wrong: dict[str, Any]) -> None:
    decode(KEY, envelope.encode(b"history", KEY, _payload(_header(), _columns()), PLAIN), PLAIN)
    _refused(_payload(_header(**wrong), _columns()))


@pytest.mark.parametrize("field", sorted(json.loads(dump_header(INDEX))))
def test_history_index_object_with_a_missing_field_is_refused(field: str) -> None:
    header = _header()
    del header[field]
    _refused(_payload(header, _columns()))


@pytest.mark.parametrize(
    "names",
    [
        (NAMES[1], NAMES[0]),
        (NAMES[0], NAMES[0]),
        (NAMES[0]._replace(mask=0),),
        (NAMES[0]._replace(cookie=Cookie(255)),),
        (NAMES[1]._replace(cookie=Cookie(256)),),
        (NAMES[1]._replace(ino=Ino(0)),),
        (NAMES[1]._replace(parent=Ino(0)),),
        (NAMES[1]._replace(name=b"a/b"),),
        (NAMES[1]._replace(name=b"a\0"),),
    ],
    ids=["order", "twice", "mask", "cookie", "both", "ino", "parent", "slash", "nul"],
)
def test_history_index_object_with_invalid_removed_names_is_not_written(
    names: tuple[RemovedName, ...],
) -> None:
    with pytest.raises(FormatError):
        encode(replace(INDEX, names=RemovedNames.of(names)), PLAIN)


@pytest.mark.parametrize(
    "inodes",
    [(INODES[1], INODES[0]), (INODES[0], INODES[0]), (ChangedInode(Ino(5), 0, 0),)],
    ids=["order", "twice", "unchanged"],
)
def test_history_index_object_with_invalid_inodes_is_not_written(
    inodes: tuple[ChangedInode, ...],
) -> None:
    with pytest.raises(FormatError):
        encode(replace(INDEX, inodes=Inodes.of(inodes)), PLAIN)


def test_truncated_or_extended_history_index_object_is_refused() -> None:
    whole = _payload(_header(), _columns())
    for size in (0, 3, 4, 100, len(whole) - 1):
        _refused(whole[:size])
    _refused(whole + b"x")
    _refused(struct.pack(">I", 1 << 31) + whole[4:])


def test_history_index_object_with_overflowing_inode_numbers_is_refused() -> None:
    steps = array("Q", [2**63, 2**63, 2**63])
    steps.byteswap()
    _refused(_payload(_header(), steps.tobytes() + _columns()[24:]))


def test_error_about_a_newer_history_index_version_advises_an_upgrade() -> None:
    data = envelope.encode(b"history", KEY, _payload(_header(version=2), _columns()), PLAIN)
    with pytest.raises(NewerFormatError, match="history index version 2"):
        decode(KEY, data, PLAIN)


@both
def test_flipped_bit_in_every_byte_of_a_history_index_object_is_detected(keyring: Any) -> None:
    data = encode(INDEX, keyring)
    for at in range(len(data)):
        with pytest.raises(FormatError):
            decode(KEY, flipped(data, at, at % 8), keyring)
