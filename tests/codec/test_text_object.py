"""Text objects: every byte is protected."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3fs_meta.codec import text_object
from s3fs_meta.codec.fields import Fields
from s3fs_meta.errors import FormatError, NewerFormatError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from tests.damage import flipped

DATA = text_object.encode("lease", 1, {"a": 1, "b": "Grüße"})


def test_fields_are_read_back_and_readable() -> None:
    """The object has three kinds of lines."""
    fields = text_object.decode("lease", 1, "lease", DATA)

    assert (fields.integer("a"), fields.text("b", 5)) == (1, "Grüße")
    assert DATA.startswith(b's3fs-meta lease 1\n{\n "a": 1,')


def test_every_flipped_bit_is_found() -> None:
    """Every bit of the object is protected."""
    for at in range(len(DATA) * 8):
        with pytest.raises(FormatError):
            text_object.decode("lease", 1, "lease", flipped(DATA, at // 8, at % 8))


def test_every_truncation_and_extension_is_found() -> None:
    """A short or long object is an error."""
    for cut in range(len(DATA)):
        for damaged in (DATA[:cut], DATA[cut + 1 :]):
            with pytest.raises(FormatError):
                text_object.decode("lease", 1, "lease", damaged)
    for extra in (b"\n", b"\0", b" ", DATA):
        with pytest.raises(FormatError):
            text_object.decode("lease", 1, "lease", DATA + extra)


def test_other_kinds_versions_and_sizes_are_refused() -> None:
    """An intact object of another kind, a newer one, and a huge one."""
    with pytest.raises(FormatError, match="does not begin with the first line of a superblock"):
        text_object.decode("superblock", 1, "superblock", DATA)
    with pytest.raises(NewerFormatError, match=r"lease version 2, .*upgrade"):
        text_object.decode("lease", 1, "lease", text_object.encode("lease", 2, {}))
    with pytest.raises(FormatError, match="too large"):
        text_object.decode("lease", 1, "lease", bytes(TEXT_OBJECT_BYTES_MAX + 1))


def test_damaged_version_is_damage() -> None:
    """The checksum is compared before the version: no flipped bit requests an upgrade."""
    damaged = DATA.replace(b"lease 1", b"lease 3")
    with pytest.raises(FormatError, match="wrong checksum"):
        text_object.decode("lease", 1, "lease", damaged)


def test_too_large_objects_are_not_written() -> None:
    """The bound is checked on both sides."""
    with pytest.raises(AssertionError):
        text_object.encode("lease", 1, {"a": "x" * TEXT_OBJECT_BYTES_MAX})


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.binary(max_size=200), st.integers(0, 30))
def test_random_bytes_are_no_text_object(data: bytes, prefix_bytes: int) -> None:
    """No input makes the parser raise anything but FormatError."""
    with pytest.raises(FormatError):
        text_object.decode("lease", 1, "lease", DATA[:prefix_bytes] + data)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.binary(max_size=200) | st.text('[]{}:,"019.e-+tfn', max_size=50).map(str.encode))
def test_intact_objects_with_any_content_are_read_or_refused(body: bytes) -> None:
    """A correct checksum does not imply JSON."""
    text = b"s3fs-meta lease 1\n" + body + b"\n"
    try:
        fields = text_object.decode("lease", 1, "lease", text + text_object.last_line(text))
    except FormatError:
        return
    assert isinstance(fields, Fields)
