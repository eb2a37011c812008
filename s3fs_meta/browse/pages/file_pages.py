"""Replies with the content of files: previews, pictures, downloads.

Owns: the headers for file content. Does not know: the page of a file.
Keeps: content is never sent as a page, regardless of the file's name and first bytes.
"""

import re
import stat
from functools import partial
from typing import Final, NamedTuple

from s3fs_meta.browse.limits import BROWSE_PICTURE_BYTES_MAX, BROWSE_TEXT_BYTES_MAX
from s3fs_meta.browse.names import attachment, to_url
from s3fs_meta.browse.pages import preview
from s3fs_meta.browse.pages.wanted import Wanted, WrongAddressError
from s3fs_meta.browse.sources import source
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.browse.templates import Render
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.limits import KIB
from s3fs_meta.model import Attributes, Ino
from s3fs_meta.mount import http_server
from s3fs_meta.mount.http_server import Reply, Send
from s3fs_meta.sync.chain.chain import Link

_ANY: Final = "application/octet-stream"
_MAGIC_BYTES: Final = 1 * KIB
# Number of characters of a changelog's hash in an ETag, which distinguish equal txg numbers.
# After ``fsck -y`` has abandoned txgs, the same txg number may belong to another changelog.
_HASH_CHARS: Final = 16
_INODE: Final = re.compile(rb"[0-9]{1,18}")
# The sandbox disables scripts, even if a browser mistakes a file for a page.
_SANDBOX: Final = "default-src 'none'; sandbox"


class Preview(NamedTuple):
    """The preview of a file: the beginning of a text, or a picture."""

    text: str | None = None
    is_cut: bool = False  # True if the preview shows only the beginning of the text
    is_picture: bool = False


async def preview_of(point: OpenPoint, attributes: Attributes) -> Preview:
    """Return the preview of a file. Raises the same errors as ``source.send``."""
    if not stat.S_ISREG(attributes.mode) or not attributes.size_bytes:
        return Preview()
    begin = await source.beginning(point, attributes, BROWSE_TEXT_BYTES_MAX)
    if preview.picture_type(begin) is not None:
        return Preview(is_picture=attributes.size_bytes <= BROWSE_PICTURE_BYTES_MAX)
    is_cut = attributes.size_bytes > BROWSE_TEXT_BYTES_MAX
    return Preview(preview.text_of(begin, is_cut=is_cut), is_cut)


async def of_inode(site: Source, _render: Render, wanted: Wanted) -> Reply:
    """Redirect to the path that an inode had at a txg, because a file may have been renamed."""
    if len(wanted.names) != 1 or not _INODE.fullmatch(wanted.names[0]):
        raise WrongAddressError("the address must contain an inode number")
    async with site.used(wanted.txg) as point:
        names = source.path_of(point, Ino(int(wanted.names[0])))
    location = f"/at/{wanted.txg}/{to_url(b'/'.join(names))}"
    return Reply(http_server.SEE_OTHER, headers={"location": location})


async def content(site: Source, _render: Render, wanted: Wanted) -> Reply:
    """Return the content of a file as a download, of which a client may request a part."""
    found, link = await _file(site, wanted)
    headers = {
        "accept-ranges": "bytes",
        "etag": f'"{link.txg}-{link.hash[:_HASH_CHARS]}-{found.ino}"',
        "content-disposition": attachment(wanted.names[-1]),
        "content-security-policy": _SANDBOX,
    }
    stream_of = partial(_stream, site, wanted)
    return Reply(
        http_server.OK, b"", _ANY, headers, stream_of(), found.size_bytes, stream_of=stream_of
    )


async def picture(site: Source, _render: Render, wanted: Wanted) -> Reply:
    """Return the content of a raster picture, which the preview shows."""
    attributes, _link = await _file(site, wanted)
    async with site.used(wanted.txg) as point:
        begin = await source.beginning(point, attributes, _MAGIC_BYTES)
    content_type = preview.picture_type(begin)
    if content_type is None or attributes.size_bytes > BROWSE_PICTURE_BYTES_MAX:
        raise WrongAddressError("this file is not a picture, or is too large for a preview")
    headers = {"content-disposition": "inline", "content-security-policy": _SANDBOX}
    stream = _stream(site, wanted)
    return Reply(http_server.OK, b"", content_type, headers, stream, attributes.size_bytes)


async def _file(site: Source, wanted: Wanted) -> tuple[Attributes, Link]:
    """Return the attributes of a file, and the chain position of its point in time."""
    async with site.used(wanted.txg) as point:
        found, link = source.find(point, wanted.names), point.volume.link
    if not stat.S_ISREG(found.mode):
        raise WrongAddressError("this path is not a regular file")
    return found, link


def _stream(
    site: Source, wanted: Wanted, start: int = 0, stop: int | None = None
) -> http_server.Stream:
    async def stream(put: Send) -> None:
        async with site.used(wanted.txg) as point:
            await source.send(point, source.find(point, wanted.names), put, start, stop)

    return stream
