"""The range of bytes that the headers of a request select."""

import pytest

from s3fs_meta.browse.ranges import ByteRange, requested


@pytest.mark.parametrize(
    ("header", "length", "expected"),
    [
        (b"bytes=0-0", 5, ByteRange(0, 1)),
        (b"Bytes = 1 - 9", 5, ByteRange(1, 5)),
        (b"bytes=2-", 5, ByteRange(2, 5)),
        (b"bytes=-2", 5, ByteRange(3, 5)),
        (b"bytes=-9", 5, ByteRange(0, 5)),
        (b"bytes=5-", 5, ByteRange(5, 5)),
        (b"bytes=7-9", 5, ByteRange(7, 5)),
        (b"bytes=-0", 5, ByteRange(5, 5)),
        (b"bytes=0-", 0, ByteRange(0, 0)),
        (b"bytes=3-2", 5, None),
        (b"bytes=-", 5, None),
        (b"bytes=0-1,2-3", 5, None),
        (b"bytes=0x1-2", 5, None),
        (b"bytes=1" + 20 * b"0" + b"-", 5, None),
        (b"", 5, None),
    ],
)
def test_range_header_selects_bytes(header: bytes, length: int, expected: ByteRange | None) -> None:
    assert requested({b"range": header}, '"a"', length) == expected


def test_range_of_a_changed_file_is_ignored() -> None:
    headers = {b"range": b"bytes=1-", b"if-range": b'"a"'}
    assert requested(headers, '"a"', 5) == ByteRange(1, 5)
    assert requested(headers, '"b"', 5) is None
    assert requested(headers | {b"if-range": b'W/"a"'}, '"a"', 5) is None
