"""The site: which page or download a request gets.

Owns: the URLs, the values of each page. Does not know: connections, HTML.
Keeps: nothing is changed. Content of files is sent as a download, or as a raster picture; it is
never a page of this site.

    /                       the time line; ?first=&last= a part of it
    /go?at=&path=           to a point in time that the user typed
    /at/TXG/PATH            a directory or a file
    /content/TXG/PATH       download of a file; /picture/… the same for the preview
    /tar/TXG/PATH           download of a directory
    /versions/PATH          the versions of a file
    /compare/PATH?old=&new= two of them side by side
    /changes/TXG/PATH       what changed since then
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qs

from s3fs_meta import option_syntax
from s3fs_meta.browse import file_pages, folder_pages, history_pages, http_server
from s3fs_meta.browse.access import Access
from s3fs_meta.browse.http_server import Reply, Request
from s3fs_meta.browse.names import from_url, to_url
from s3fs_meta.browse.source import Source
from s3fs_meta.browse.templates import STYLE, Render
from s3fs_meta.browse.wanted import Wanted, WrongAddressError
from s3fs_meta.errors import (
    BusyError,
    CorruptionError,
    FsError,
    NoSpaceLeftError,
    S3fsError,
    SettingsError,
    StoreError,
)
from s3fs_meta.model import Txg

_log = logging.getLogger(__name__)

_TXG: Final = re.compile(rb"[0-9]{1,18}")
_Page = Callable[[Source, Render, Wanted], Awaitable[Reply]]

_OF_TXG: Final[dict[bytes, _Page]] = {
    b"at": folder_pages.entry,
    b"content": file_pages.content,
    b"picture": file_pages.picture,
    b"tar": folder_pages.archive,
    b"changes": history_pages.changes,
}
_OF_PATH: Final[dict[bytes, _Page]] = {
    b"versions": history_pages.versions,
    b"compare": history_pages.compare,
    b"": history_pages.time_line,
}
_ERRORS: Final[dict[type[Exception], tuple[int, str]]] = {
    WrongAddressError: (http_server.NOT_FOUND, "Not found"),
    NoSpaceLeftError: (http_server.NOT_NOW, "The disk is full"),
    BusyError: (http_server.NOT_NOW, "Too many requests"),
    FsError: (http_server.NOT_FOUND, "Not found at this point in time"),
    SettingsError: (http_server.NOT_FOUND, "Not available"),
    StoreError: (http_server.STORE, "The bucket cannot be read"),
    CorruptionError: (http_server.BUG, "Stored data is damaged"),
    S3fsError: (http_server.BUG, "Failed"),
}


class Site:
    """The pages of one filesystem."""

    def __init__(self, source: Source, access: Access, render: Render) -> None:
        self._source = source
        self._access = access
        self._render = render
        self._style = STYLE.read_bytes()

    async def answer(self, request: Request) -> Reply:
        """Return the reply to a request."""
        refused = self._access.refusal(request)
        if refused is not None:
            return refused
        try:
            return await self._page(request)
        except (WrongAddressError, S3fsError) as exc:
            status, title = next(one for kind, one in _ERRORS.items() if isinstance(exc, kind))
            return self._error(status, title, str(exc))
        except Exception:  # noqa: BLE001  # a bug in one page must not end the others
            _log.exception("a page could not be made because of a bug")
            return self._error(http_server.BUG, "A bug", "the terminal shows the traceback")

    async def _page(self, request: Request) -> Reply:
        path, _, text = request.target.partition(b"?")
        query = {
            key: found[-1]
            for key, found in parse_qs(text.decode("latin-1"), errors="surrogateescape").items()
        }
        _, _, rest = path.partition(b"/")
        first, _, rest = rest.partition(b"/")
        if path == b"/style.css":
            return Reply(http_server.OK, self._style, "text/css; charset=utf-8")
        if path == b"/favicon.ico":  # browsers ask for it
            return Reply(http_server.OK, b"", "image/x-icon")
        if path == b"/go":
            return await self._go(query)
        if first in _OF_TXG:
            number, _, rest = rest.partition(b"/")
            if not _TXG.fullmatch(number):
                raise WrongAddressError("a transaction group is a number")
            wanted = Wanted(Txg(int(number)), _names(rest), query)
            return await _OF_TXG[first](self._source, self._render, wanted)
        if first in _OF_PATH and (first or path == b"/"):
            wanted = Wanted(Txg(0), _names(rest), query)
            return await _OF_PATH[first](self._source, self._render, wanted)
        raise WrongAddressError("there is no such page")

    async def _go(self, query: dict[str, str]) -> Reply:
        """Return the way to a point in time that the user typed."""
        wanted = option_syntax.point_in_time("at", query.get("at", "newest"))
        link = await self._source.find(wanted)
        path = to_url(b"/".join(_names(query.get("path", "").encode())))
        return Reply(http_server.SEE_OTHER, headers={"location": f"/at/{link.txg}/{path}"})

    def _error(self, status: int, title: str, why: str) -> Reply:
        page = self._render("error.html", title=title, why=why, place=self._source.place.url)
        return Reply(status, page)


def _names(path: bytes) -> list[bytes]:
    found = from_url(path)
    if found is None:
        raise WrongAddressError("this is not the path of a file")
    return found
