"""Tests of the messages of the control socket."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.control.protocol import Request, decode, decode_request, encode
from s3fs_meta.errors import ControlError
from s3fs_meta.limits import CONTROL_MESSAGE_BYTES_MAX

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(derandomize=True, max_examples=30)
@given(st.dictionaries(st.text(), _values))
def test_control_message_is_encoded_as_one_line_and_decoded_unchanged(
    message: dict[str, object],
) -> None:
    """The only newline of an encoded message is its last byte."""
    line = encode(message)

    assert line.find(b"\n") == len(line) - 1
    assert decode(line) == message


def test_control_request_may_omit_arguments() -> None:
    assert decode_request(b'{"command":"status"}') == Request("status", {})


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"3",
        b"{}",
        b'{"command":3}',
        b'{"command":"x","arguments":[]}',
        b"[" * 100_000,
    ],
)
def test_invalid_control_request_is_refused(line: bytes) -> None:
    with pytest.raises(ControlError):
        decode_request(line)


def test_control_message_above_the_size_limit_is_refused() -> None:
    """The sender of a message above the size limit gets an error."""
    with pytest.raises(ControlError, match="too long"):
        encode({"text": "x" * CONTROL_MESSAGE_BYTES_MAX})
