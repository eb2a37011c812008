"""The lease object: encoding, decoding, rejected values and versions."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import lease, text_object
from s3fs_meta.codec.image import content_hash, manifest_key
from s3fs_meta.codec.lease import (
    KEY,
    UNKNOWN_MACHINE,
    Head,
    Lease,
    MachineMarks,
    decode,
    decode_head,
    encode,
    encode_head,
)
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.model import Epoch, ObjectKey, Txg
from tests.codec.json_values import json_values

HEAD = Head(Txg(5), manifest_key(Txg(5), Epoch(2), bytes(8)), content_hash(b"manifest"))
LEASE = Lease(
    epoch=Epoch(3),
    holder="0123456789abcdef",
    host="büro.example",
    pid=4711,
    since_ns=1_700_000_000_000_000_000,
    released=False,
    head=HEAD,
    nonce="5a" * 16,
    machine=MachineMarks("0f" * 16, None),
)
FIELDS = {
    "epoch": 3,
    "holder": "h",
    "host": "h",
    "pid": 1,
    "since_ns": 1,
    "released": True,
    "head": None,
    "nonce": "5a" * 16,
    "machine": {"machine_id": None, "product_uuid": None},
}


@pytest.mark.parametrize(
    "value",
    [
        LEASE,
        replace(LEASE, head=None),
        replace(LEASE, released=True),
        Lease(Epoch(0), "", "", 0, 0, released=True, head=None, nonce="00" * 16),
    ],
    ids=str,
)
def test_decoded_lease_equals_the_encoded_lease(value: Lease) -> None:
    assert decode(KEY, encode(value)) == value


def test_decoded_head_equals_the_encoded_head() -> None:
    """The head (a reference to the newest image) is stored as text in the local state."""
    assert decode_head("local state", encode_head(HEAD)) == HEAD


@pytest.mark.parametrize("text", ["", "null", "{}", "ü", "{" * 9, '{"txg": 5}'])
def test_damaged_head_in_the_local_state_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        decode_head("local state", text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epoch": -1},
        {"epoch": True},
        {"epoch": 1 << 63},
        {"holder": "x" * 65},
        {"host": "two\nlines"},
        {"host": 5},
        {"pid": "1"},
        {"since_ns": 1.5},
        {"released": 0},
        {"nonce": None},
        {"nonce": "5a" * 15},
        {"nonce": "5A" * 16},
        {"machine": None},
        {"machine": {}},
        {"machine": {"machine_id": "0f" * 16, "product_uuid": "00"}},
        {"machine": {"machine_id": None, "product_uuid": None, "more": None}},
        {"head": 0},
        {"head": {}},
        {"head": {**HEAD._asdict(), "txg": 6}},
        {"head": {**HEAD._asdict(), "manifest_key": "lease"}},
        {"head": {**HEAD._asdict(), "manifest_hash": "00"}},
        {"head": {**HEAD._asdict(), "more": 1}},
        {"more": 1},
    ],
    ids=str,
)
def test_lease_with_an_invalid_field_is_refused(wrong: dict[str, object]) -> None:
    assert decode(KEY, text_object.encode("lease", lease.VERSION, FIELDS)).epoch == 3
    with pytest.raises(FormatError):
        decode(KEY, text_object.encode("lease", lease.VERSION, {**FIELDS, **wrong}))


@pytest.mark.parametrize("name", FIELDS)
def test_lease_without_one_of_its_fields_is_refused(name: str) -> None:
    fields = {key: value for key, value in FIELDS.items() if key != name}

    with pytest.raises(FormatError, match=name):
        decode(KEY, text_object.encode("lease", lease.VERSION, fields))


def test_lease_that_cannot_be_decoded_is_not_written() -> None:
    head = Head(Txg(6), ObjectKey("image/x"), "")
    for value in (replace(LEASE, epoch=Epoch(-1)), replace(LEASE, head=head)):
        with pytest.raises(FormatError):
            encode(value)


def test_error_about_a_newer_lease_version_advises_an_upgrade() -> None:
    """A lease of a newer version is rejected, because the program cannot interpret it."""
    with pytest.raises(NewerFormatError, match="upgrade"):
        decode(KEY, text_object.encode("lease", lease.VERSION + 1, FIELDS))


@settings(derandomize=True, max_examples=80)
@given(st.sampled_from(sorted([*FIELDS, "x"])), json_values)
def test_arbitrary_value_in_a_lease_is_refused_or_decoded_unchanged(
    name: str, value: object
) -> None:
    """For a random value, the parser of leases raises no error but FormatError."""
    try:
        read = decode(KEY, text_object.encode("lease", lease.VERSION, {**FIELDS, name: value}))
    except FormatError:
        return
    assert decode(KEY, encode(read)) == read
    found = getattr(read, name)
    if isinstance(found, MachineMarks):
        found = found._asdict()
    assert found == value
    assert type(found) is type(value)


LEASE_1 = b"""\
s3fs-meta lease 1
{
 "epoch": 3,
 "head": {
  "manifest_hash": "0d197521d9a48760576da1c87dfd828a60d397ea1e16f92a5b7c44b4f4060ce1",
  "manifest_key": "image/000000000005-2-0000000000000000/manifest",
  "txg": 5
 },
 "holder": "0123456789abcdef",
 "host": "b\\u00fcro.example",
 "pid": 4711,
 "released": false,
 "since_ns": 1700000000000000000
}
blake3 ed654c413389b0dc0409361303e7a80f250e3fa04724f53551ab3b97315aa5f3
"""


def test_leases_of_version_1_can_still_be_read() -> None:
    """A lease of version 1 has no nonce and no machine identifiers."""
    assert decode(KEY, LEASE_1) == replace(LEASE, nonce=None, machine=UNKNOWN_MACHINE)


def test_lease_without_a_nonce_is_not_written() -> None:
    """A lease of version 1, which has no nonce, can only be decoded."""
    with pytest.raises(FormatError):
        encode(replace(LEASE, nonce=None))


@pytest.mark.parametrize(
    ("one", "other", "is_other"),
    [
        (UNKNOWN_MACHINE, MachineMarks("aa", "bb"), False),
        (MachineMarks("aa", None), MachineMarks("aa", "bb"), False),
        (MachineMarks("aa", None), MachineMarks(None, "bb"), False),
        (MachineMarks("aa", "cc"), MachineMarks("aa", "bb"), True),
        (MachineMarks("ff", None), MachineMarks("aa", "bb"), True),
    ],
    ids=str,
)
def test_two_machines_differ_if_an_identifier_known_for_both_differs(
    one: MachineMarks, other: MachineMarks, *, is_other: bool
) -> None:
    """A machine identifier is compared only if both hosts know it."""
    assert one.is_other(other) is is_other
    assert other.is_other(one) is is_other


LEASE_2 = b"""\
s3fs-meta lease 2
{
 "epoch": 3,
 "head": {
  "manifest_hash": "0d197521d9a48760576da1c87dfd828a60d397ea1e16f92a5b7c44b4f4060ce1",
  "manifest_key": "image/000000000005-2-0000000000000000/manifest",
  "txg": 5
 },
 "holder": "0123456789abcdef",
 "host": "b\\u00fcro.example",
 "machine": {
  "machine_id": "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
  "product_uuid": null
 },
 "nonce": "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
 "pid": 4711,
 "released": false,
 "since_ns": 1700000000000000000
}
blake3 1b07b9cf3fc1b61db6b74c75fc541b53d6e36b5088de33c48c09b4b1d4c61b1c
"""


def test_leases_of_version_2_can_still_be_read() -> None:
    assert decode(KEY, LEASE_2) == LEASE
