"""The lease object."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import lease, text_object
from s3fs_meta.codec.image import content_hash, manifest_key
from s3fs_meta.codec.lease import KEY, Head, Lease, decode, decode_head, encode, encode_head
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.model import Epoch, ObjectKey, Txg

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
HEAD = Head(Txg(5), manifest_key(Txg(5), Epoch(2), bytes(8)), content_hash(b"manifest"))
LEASE = Lease(
    epoch=Epoch(3),
    holder="0123456789abcdef",
    host="büro.example",
    pid=4711,
    since_ns=1_700_000_000_000_000_000,
    released=False,
    head=HEAD,
)
FIELDS = {
    "epoch": 3,
    "holder": "h",
    "host": "h",
    "pid": 1,
    "since_ns": 1,
    "released": True,
    "head": None,
}


@pytest.mark.parametrize(
    "value",
    [
        LEASE,
        replace(LEASE, head=None),
        replace(LEASE, released=True),
        Lease(Epoch(0), "", "", 0, 0, released=True, head=None),
    ],
    ids=str,
)
def test_lease_comes_back(value: Lease) -> None:
    """Fresh, held and released leases survive."""
    assert decode(KEY, encode(value)) == value


def test_head_comes_back_on_its_own() -> None:
    """The local state keeps the head as text."""
    assert decode_head("local state", encode_head(HEAD)) == HEAD


@pytest.mark.parametrize("text", ["", "null", "{}", "ü", "{" * 9, '{"txg": 5}'])
def test_damaged_heads_are_refused(text: str) -> None:
    """Text in the local state is not trusted either."""
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
def test_wrong_fields_are_refused(wrong: dict[str, object]) -> None:
    """A sound object with a wrong field is damage."""
    assert decode(KEY, text_object.encode("lease", 1, FIELDS)).epoch == 3
    with pytest.raises(FormatError):
        decode(KEY, text_object.encode("lease", 1, {**FIELDS, **wrong}))


@pytest.mark.parametrize("name", FIELDS)
def test_missing_fields_are_refused(name: str) -> None:
    """Nothing is assumed."""
    fields = {key: value for key, value in FIELDS.items() if key != name}

    with pytest.raises(FormatError, match=name):
        decode(KEY, text_object.encode("lease", 1, fields))


def test_wrong_values_are_not_written() -> None:
    """A lease that nobody could read must not reach the bucket."""
    head = Head(Txg(6), ObjectKey("image/x"), "")
    for value in (replace(LEASE, epoch=Epoch(-1)), replace(LEASE, head=head)):
        with pytest.raises(FormatError):
            encode(value)


def test_newer_leases_say_to_upgrade() -> None:
    """An older program must not take a lease that it cannot understand."""
    with pytest.raises(NewerFormatError, match="upgrade"):
        decode(KEY, text_object.encode("lease", lease.VERSION + 1, FIELDS))


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.sampled_from(sorted([*FIELDS, "x"])), json_values)
def test_any_value_in_any_field_is_refused_or_kept(name: str, value: object) -> None:
    """No value makes the parser raise anything but FormatError, or changes on its way."""
    try:
        read = decode(KEY, text_object.encode("lease", 1, {**FIELDS, name: value}))
    except FormatError:
        return
    assert decode(KEY, encode(read)) == read
    assert getattr(read, name) == value
    assert type(getattr(read, name)) is type(value)


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


def test_leases_of_version_1_open_for_ever() -> None:
    """These bytes are in buckets."""
    assert decode(KEY, LEASE_1) == LEASE
