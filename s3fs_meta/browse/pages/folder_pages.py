"""The pages of directories and other entries, and downloads of directories as archives.

Owns: the order and the paging of names. Does not know: HTML, points in time, content of files
(``file_pages``).
"""

import stat
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from s3fs_meta.browse.downloads import tar_stream, zip_stream
from s3fs_meta.browse.downloads.tar_stream import TarStream
from s3fs_meta.browse.downloads.zip_stream import ZipStream
from s3fs_meta.browse.limits import BROWSE_PAGE_NAMES, BROWSE_SORTED_NAMES_MAX
from s3fs_meta.browse.names import attachment
from s3fs_meta.browse.page_server import page
from s3fs_meta.browse.pages import file_pages
from s3fs_meta.browse.pages.wanted import Wanted, WrongAddressError, commands, common
from s3fs_meta.browse.sources import source
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.browse.templates import Render
from s3fs_meta.fs.past.open_points import OpenPoint
from s3fs_meta.meta.tables import dentries, symlinks
from s3fs_meta.model import Attributes, Cookie
from s3fs_meta.mount import http_server
from s3fs_meta.mount.http_server import Reply, Send

_KINDS: Final = {
    stat.S_IFDIR: "folder",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "symbolic link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}


class FolderEntry(NamedTuple):
    """A name in a listed directory, with the attributes of its inode."""

    path: bytes  # path of the entry, relative to the root of the filesystem
    name: bytes
    kind: str
    mode: str
    attributes: Attributes


async def entry(site: Source, render: Render, wanted: Wanted) -> Reply:
    """Return the page of a directory or another entry."""
    async with site.used(wanted.txg) as point:
        found = source.find(point, wanted.names)
        values = await common(site, wanted, point.volume.link)
        values |= {
            "entry": described(wanted.names, found),
            "target": None,
            "commands": commands(site, wanted.txg, wanted.path),
        }
        if stat.S_ISDIR(found.mode):
            return page(render("folder.html", **values, **_listing(point, found, wanted)))
        if stat.S_ISLNK(found.mode):
            values["target"] = symlinks.target(point.db, found.ino)
        preview = await file_pages.preview_of(point, found)
        return page(render("file.html", **values, preview=preview))


def described(names: Sequence[bytes], attributes: Attributes) -> FolderEntry:
    """Return a directory entry for a page, with its kind and mode as text."""
    kind = _KINDS.get(stat.S_IFMT(attributes.mode), "unknown")
    name = names[-1] if names else b"/"
    return FolderEntry(b"/".join(names), name, kind, stat.filemode(attributes.mode), attributes)


def _listing(point: OpenPoint, directory: Attributes, wanted: Wanted) -> dict[str, Any]:
    """Return one page of the names in a directory.

    A small directory is sorted by name, with folders first; then ``from`` is the number of names
    before the page. A large directory is sorted by cookie; then ``after`` is the last cookie before
    the page.
    """
    ino, limit = directory.ino, BROWSE_SORTED_NAMES_MAX
    rows = dentries.page(point.db, ino, Cookie(0), limit + 1)
    if len(rows) <= limit:
        rows.sort(key=lambda row: (not stat.S_ISDIR(row[2].mode), row[0]))
        begin = wanted.number("from", 0)
        shown, rest = rows[begin : begin + BROWSE_PAGE_NAMES], rows[begin + BROWSE_PAGE_NAMES :]
        following = f"?from={begin + BROWSE_PAGE_NAMES}" if rest else None
        text = f"{begin + 1:,} to {begin + len(shown):,} of {len(rows):,}" if shown else "no"
    else:
        after = Cookie(wanted.number("after", 0))
        if after >= 1 << 63:
            raise WrongAddressError("the parameter 'after' is too large for a position in a folder")
        rows = dentries.page(point.db, ino, after, BROWSE_PAGE_NAMES + 1)
        shown = rows[:BROWSE_PAGE_NAMES]
        following = f"?after={shown[-1][1]}" if len(rows) > BROWSE_PAGE_NAMES else None
        text = f"{len(shown):,} of {directory.size_bytes:,} unsorted"
    is_first = not wanted.number("from", 0) and not wanted.number("after", 0)
    return {
        "entries": [described([*wanted.names, name], attributes) for name, _, attributes in shown],
        "following": following,
        "is_first": is_first,
        "counted": text,
    }


async def tar(site: Source, _render: Render, wanted: Wanted) -> Reply:
    """Return a directory as a tar archive."""
    async with site.used(wanted.txg) as point:
        _require_directory(point, wanted)
    return _archive(site, wanted, TarStream, b".tar", tar_stream.CONTENT_TYPE)


async def zip_archive(site: Source, _render: Render, wanted: Wanted) -> Reply:
    """Return a directory as a zip archive."""
    async with site.used(wanted.txg) as point:
        await zip_stream.require_few(point, _require_directory(point, wanted))
    return _archive(site, wanted, ZipStream, b".zip", zip_stream.CONTENT_TYPE)


def _archive(
    site: Source,
    wanted: Wanted,
    kind: type[TarStream] | type[ZipStream],
    suffix: bytes,
    content_type: str,
) -> Reply:
    name = wanted.names[-1] if wanted.names else b"root"

    async def stream(put: Send) -> None:
        async with site.used(wanted.txg) as point:
            await kind(point, put).send(_require_directory(point, wanted), name)

    headers = {"content-disposition": attachment(name + suffix)}
    return Reply(http_server.OK, b"", content_type, headers, stream)


def _require_directory(point: OpenPoint, wanted: Wanted) -> Attributes:
    found = source.find(point, wanted.names)
    if not stat.S_ISDIR(found.mode):
        raise WrongAddressError(
            "this path is not a folder, so it cannot be downloaded as an archive"
        )
    return found
