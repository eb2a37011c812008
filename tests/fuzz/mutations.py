"""Hypothesis strategies that mutate valid bytes and valid JSON."""

import copy
import json
from typing import Any, Final

from hypothesis import strategies as st

from s3fs_meta.codec.changelog import part_key, part_prefix
from s3fs_meta.codec.image import image_prefix, manifest_key, piece_key
from s3fs_meta.codec.pack import new_key
from s3fs_meta.model import Epoch, Txg

_EDITS: Final = st.sampled_from([1, 1, 1, 2, 4])
_HUGE: Final = (1 << 64) - 1
_NUMBERS: Final = tuple(
    sorted({(1 << bits) + more for bits in (0, 7, 8, 16, 24, 31, 32, 63) for more in (-1, 0, 1)})
)
_KEYS: Final = (
    "lease",
    manifest_key(Txg(4), Epoch(2), bytes(8)),
    piece_key(image_prefix(Txg(4), Epoch(2), bytes(8)), 0),
    part_key(part_prefix(Txg(7), Epoch(3), bytes(8)), 0),
    part_key(part_prefix(Txg(7), Epoch(99), bytes(8)), 0),
    new_key(Epoch(1), bytes(16)),
    f"pack/00/{_HUGE}-{'0' * 32}",
)
_VALUES: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([*_NUMBERS, -1, _HUGE, -_HUGE, 10**30, 10**1000]),
    st.floats(),
    st.sampled_from(_KEYS),
    st.sampled_from(["", "0", "00" * 32, "ff" * 32, "\0", "\n", "\ud800", "é", "x" * 600]),
    st.text(max_size=5),
    st.sampled_from([[], {}, [[]], [{}], {"": []}, [None, 0]]),
)


@st.composite
def mutated_bytes(draw: st.DrawFn, intact: bytes) -> bytes:
    """Return *intact* with a few random edits, or sometimes only random bytes."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=300))
    data = bytearray(intact)
    for _ in range(draw(_EDITS)):
        _edit(draw, data)
    return bytes(data)


def _edit(draw: st.DrawFn, data: bytearray) -> None:
    at = draw(st.integers(0, len(data)))
    run = draw(st.integers(1, 70))
    match draw(st.integers(0, 7)):
        case 0:
            data[at : at + 1] = bytes(255 ^ byte for byte in data[at : at + 1])
        case 1:
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        case 2:
            size = draw(st.sampled_from([1, 2, 4, 8]))
            number = draw(st.sampled_from(_NUMBERS)) % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, "big")
        case 3:
            del data[at : at + run]
        case 4:
            data[at:at] = data[at : at + run]
        case 5:
            data[at:at] = draw(st.binary(min_size=1, max_size=20))
        case 6:
            data[at : at + run] = bytes(run)
        case _:
            del data[at:]


@st.composite
def mutated_json(draw: st.DrawFn, intact: bytes) -> bytes:
    """Return the JSON object *intact* with a few random edits of its values and names."""
    document = json.loads(intact)
    for _ in range(draw(_EDITS)):
        _edit_value(draw, document)
    return json.dumps(document, sort_keys=True, indent=1).encode("ascii")


def _edit_value(draw: st.DrawFn, document: dict[str, Any]) -> None:
    places = list(_places(document))
    if not places:
        return
    holder, name = draw(st.sampled_from(places))
    match draw(st.integers(0, 5)):
        case 0:
            del holder[name]
        case 1 if isinstance(holder, list):
            holder.insert(name, copy.deepcopy(holder[name]))
        case 1:
            holder[draw(st.text(max_size=3))] = copy.deepcopy(holder[name])
        case 2:
            other, other_name = draw(st.sampled_from(places))
            holder[name] = copy.deepcopy(other[other_name])
        case 3 if isinstance(holder[name], int):
            holder[name] += draw(st.integers(-2, 2))
        case _:
            holder[name] = copy.deepcopy(draw(_VALUES))


def _places(holder: Any) -> Any:
    """Yield the container and the name or index of every value in *holder*."""
    names = holder if isinstance(holder, dict) else range(len(holder))
    for name in names:
        yield holder, name
        if isinstance(holder[name], dict | list):
            yield from _places(holder[name])
