"""Text objects (superblock and lease): a line with kind and version, then JSON and a checksum."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import text_object
from s3fs_meta.codec.fields import Fields
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from tests.damage import flipped

DATA = text_object.encode("lease", 1, {"a": 1, "b": "Grüße"})


def test_text_object_is_readable_text_and_is_decoded_unchanged() -> None:
    fields = text_object.decode("lease", 1, "lease", DATA)

    assert (fields.integer("a"), fields.text("b", 5)) == (1, "Grüße")
    assert DATA.startswith(b's3fs-meta lease 1\n{\n "a": 1,')


def test_every_flipped_bit_of_a_text_object_is_detected() -> None:
    for at in range(len(DATA) * 8):
        with pytest.raises(FormatError):
            text_object.decode("lease", 1, "lease", flipped(DATA, at // 8, at % 8))


def test_truncated_or_extended_text_object_is_refused() -> None:
    for cut in range(len(DATA)):
        for damaged in (DATA[:cut], DATA[cut + 1 :]):
            with pytest.raises(FormatError):
                text_object.decode("lease", 1, "lease", damaged)
    for extra in (b"\n", b"\0", b" ", DATA):
        with pytest.raises(FormatError):
            text_object.decode("lease", 1, "lease", DATA + extra)


def test_text_object_of_another_kind_or_a_newer_version_or_excessive_size_is_refused() -> None:
    with pytest.raises(FormatError, match="does not begin with the first line of a superblock"):
        text_object.decode("superblock", 1, "superblock", DATA)
    with pytest.raises(NewerFormatError, match=r"lease version 2 is unknown; upgrade"):
        text_object.decode("lease", 1, "lease", text_object.encode("lease", 2, {}))
    with pytest.raises(FormatError, match="too large"):
        text_object.decode("lease", 1, "lease", bytes(TEXT_OBJECT_BYTES_MAX + 1))


def test_damaged_version_field_of_a_text_object_is_reported_as_damage() -> None:
    """The checksum of a text object is verified before its version."""
    damaged = DATA.replace(b"lease 1", b"lease 3")
    with pytest.raises(FormatError, match="wrong checksum"):
        text_object.decode("lease", 1, "lease", damaged)


def test_text_object_too_large_to_be_decoded_is_not_encoded() -> None:
    with pytest.raises(AssertionError):
        text_object.encode("lease", 1, {"a": "x" * TEXT_OBJECT_BYTES_MAX})


@settings(derandomize=True, max_examples=80)
@given(st.binary(max_size=200), st.integers(0, 30))
def test_random_bytes_are_refused_as_a_text_object(data: bytes, prefix_bytes: int) -> None:
    """For random bytes, the parser of text objects raises no error but FormatError."""
    with pytest.raises(FormatError):
        text_object.decode("lease", 1, "lease", DATA[:prefix_bytes] + data)


@settings(derandomize=True, max_examples=80)
@given(st.binary(max_size=200) | st.text('[]{}:,"019.e-+tfn', max_size=50).map(str.encode))
def test_invalid_text_object_with_a_correct_checksum_causes_a_format_error(body: bytes) -> None:
    """A text object with a correct checksum may still contain invalid JSON."""
    text = b"s3fs-meta lease 1\n" + body + b"\n"
    try:
        fields = text_object.decode("lease", 1, "lease", text + text_object.last_line(text))
    except FormatError:
        return
    assert isinstance(fields, Fields)
