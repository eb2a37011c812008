"""Replies to requests for a part of a file, for resumed downloads and video players.

Owns: the headers Range, If-Range and Content-Range. Does not know: files.
Keeps: only one range of bytes is sent. A Range header with several ranges, or with another syntax, is
ignored, and the reply contains the complete file.
Source: RFC 9110, sections 13.1.5, 14 and 15.3.7.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from s3fs_meta.mount import http_server
from s3fs_meta.mount.http_server import HttpRequest, Reply

_RANGE: Final = re.compile(rb"\s*bytes\s*=\s*([0-9]{0,18})\s*-\s*([0-9]{0,18})\s*", re.IGNORECASE)


class ByteRange(NamedTuple):
    """A range of bytes, which is empty if the file has none of the requested bytes."""

    start: int
    stop: int  # the first byte after the range


def answered(reply: Reply, request: HttpRequest) -> Reply:
    """Return the reply to a request that may select a part of the content."""
    if reply.stream_of is None or reply.length is None or request.method != "GET":
        return reply
    wanted = requested(request.headers, reply.headers.get("etag", ""), reply.length)
    if wanted is None:
        return reply
    if wanted.start >= wanted.stop:
        headers = {"content-range": f"bytes */{reply.length}"}
        return Reply(http_server.RANGE, b"the file is shorter\n", headers=headers)
    span = f"bytes {wanted.start}-{wanted.stop - 1}/{reply.length}"
    return reply._replace(
        status=http_server.PARTIAL,
        headers={**reply.headers, "content-range": span},
        stream=reply.stream_of(*wanted),
        length=wanted.stop - wanted.start,
    )


def requested(headers: Mapping[bytes, bytes], etag: str, length: int) -> ByteRange | None:
    """Return the range that a request selects; None for the complete file.

    Args:
        headers: the headers of the request.
        etag: the entity tag of the file.
        length: the length of the file.
    """
    found = _RANGE.fullmatch(headers.get(b"range", b""))
    condition = headers.get(b"if-range")
    if found is None or (condition is not None and condition.strip() != etag.encode()):
        return None
    first, last = found.groups()
    if first:
        start, stop = int(first), min(int(last) + 1, length) if last else length
        return None if last and int(last) < start else ByteRange(start, stop)
    return ByteRange(max(length - int(last), 0), length) if last else None
