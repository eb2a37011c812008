"""The site: the URLs of all pages and downloads of one filesystem.

Owns: the URLs below the secret path, the maximum wait of a page for the bucket. Does not know:
connections, HTML.
Keeps: no request changes the filesystem. File content is sent as a download or as a raster picture,
never as a page of this site.

    /                       the time line; ?first=&last= limits it to some txgs
    /go?at=&path=           redirects to a point in time that the user typed
    /at/TXG/PATH            a directory or a file
    /inode/TXG/INODE        redirects to the path that an inode had
    /content/TXG/PATH       download of a file; /picture/… is the preview of a picture
    /tar/TXG/PATH           download of a directory as tar; /zip/… as zip
    /find/TXG/PATH?name=    entries below a directory that match a name
    /versions/PATH          the versions of a file
    /compare/PATH?old=&new= two versions of a file side by side
    /changes/TXG/PATH       the changes since a txg
    /since/TXG/PATH         the first of these changes, for the frame beside a folder
    /space/TXG/PATH?since=  the largest folders and files, and their growth since another txg
    /mount                  plots of the mount's statistics over time
"""

import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final
from urllib.parse import parse_qs

import trio

from s3fs_meta.background_task import background_task
from s3fs_meta.browse import ranges
from s3fs_meta.browse.access import Access
from s3fs_meta.browse.assets import ASSETS
from s3fs_meta.browse.limits import (
    BROWSE_OUTAGE_S_MAX,
    BROWSE_PENDING_FRAMES_MAX,
    BROWSE_PENDING_MAX,
)
from s3fs_meta.browse.names import from_url, to_url
from s3fs_meta.browse.page_server import FRAME_HEADERS, page
from s3fs_meta.browse.pages import (
    file_pages,
    find_page,
    folder_pages,
    history_pages,
    mount_page,
    space_page,
)
from s3fs_meta.browse.pages.wanted import Wanted, WrongAddressError
from s3fs_meta.browse.pending_pages import PendingPages
from s3fs_meta.browse.sources.mount_watch import MountWatch
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.browse.templates import Render
from s3fs_meta.console import exits
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
from s3fs_meta.mount import http_server
from s3fs_meta.mount.http_server import HttpRequest, Reply
from s3fs_meta.mount.stores import with_options
from s3fs_meta.options import option_syntax

_log = logging.getLogger(__name__)

_TXG: Final = re.compile(rb"[0-9]{1,18}")
_POLL_S: Final = 1.0  # interval at which a waiting page checks whether the bucket responds
_Page = Callable[[Source, Render, Wanted], Awaitable[Reply]]

_OF_TXG: Final[dict[bytes, _Page]] = {
    b"at": folder_pages.entry,
    b"inode": file_pages.of_inode,
    b"content": file_pages.content,
    b"picture": file_pages.picture,
    b"tar": folder_pages.tar,
    b"zip": folder_pages.zip_archive,
    b"find": find_page.find,
    b"changes": history_pages.changes,
    b"since": history_pages.since,
    b"space": space_page.space,
}
_OF_PATH: Final[dict[bytes, _Page]] = {
    b"versions": history_pages.versions,
    b"compare": history_pages.compare,
    b"": history_pages.time_line,
}
# Pages that may take seconds to make. A download or a picture never shows a waiting page.
_PATIENT: Final = {b"at", b"find", b"changes", b"since", b"space", b"inode", b"go", *_OF_PATH}
_FRAMED: Final = {b"since"}  # pages that other pages show in a frame
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
    """The web pages of one filesystem: replies to the requests of a browser."""

    def __init__(
        self,
        source: Source,
        access: Access,
        render: Render,
        pending: PendingPages,
        watch: MountWatch | None = None,
    ) -> None:
        """Create the site; *watch* is None if the filesystem is not mounted on this host."""
        self._source = source
        self._access = access
        self._render = render
        self._pending = pending
        self._watch = watch

    async def answer(self, request: HttpRequest) -> Reply:
        """Return the reply to a request of a browser."""
        if request.method not in {"GET", "HEAD"}:
            allowed = {"allow": "GET, HEAD"}
            return Reply(http_server.METHOD, b"only GET and HEAD\n", headers=allowed)
        refused = self._access.refusal(request)
        if refused is not None:
            return refused
        root = self._access.root
        target = request.target[len(root) :]
        # A program such as curl would mistake the waiting page for the requested page.
        is_browser = b"text/html" in request.headers.get(b"accept", b"")
        reply = await (self._promptly(target) if is_browser else self._answer(target))
        reply = ranges.answered(reply, request)
        if _kind(target) in _FRAMED:
            reply = reply._replace(headers={**reply.headers, **FRAME_HEADERS})
        location = reply.headers.get("location")
        if location is None:
            return reply
        return reply._replace(headers={**reply.headers, "location": root + location})

    async def _promptly(self, target: bytes) -> Reply:
        """Return a reply, or a waiting page; the waiting page later loads the requested page."""
        kind = _kind(target)
        if kind not in _PATIENT:
            return await self._answer(target)
        is_framed = kind in _FRAMED
        pending_max = BROWSE_PENDING_FRAMES_MAX if is_framed else BROWSE_PENDING_MAX
        try:
            reply = await self._pending.get(target, partial(self._answer, target), pending_max)
        except BusyError as exc:
            return self._error(target, http_server.NOT_NOW, _ERRORS[BusyError][1], str(exc))
        if reply is None:
            return page(self._render("waiting.html", is_framed=is_framed), http_server.ACCEPTED)
        return reply

    async def _answer(self, target: bytes) -> Reply:
        try:
            return await self._in_time(target)
        except Exception as exc:  # noqa: BLE001  # a bug in one page must not end the others
            # A nursery raises the errors of its tasks as an exception group.
            reasons = list(exits.leaves(exc))
            if all(isinstance(one, (WrongAddressError, S3fsError)) for one in reasons):
                reason = reasons[0]
                status, title = next(
                    one for kind, one in _ERRORS.items() if isinstance(reason, kind)
                )
                source = self._source
                why = with_options(
                    str(reason), source.place.url, source.reading.options, source.place.state
                )
                return self._error(target, status, title, why)
            _log.exception("a page could not be generated because of a bug")
            why = "the terminal shows the traceback"
            return self._error(target, http_server.BUG, "A bug", why)

    async def _in_time(self, target: bytes) -> Reply:
        """Return a page, or an error page if the bucket does not respond in time."""
        with trio.CancelScope() as scope:
            async with background_task(partial(self._cancel_without_bucket, scope)):
                return await self._page(target)
        outage = self._source.outage
        why = (
            f"{self._source.place.url} has not responded for {outage.age_s:.0f} s ({outage.why})."
            " Reload the page when the bucket responds again."
        )
        return self._error(target, http_server.STORE, "The bucket does not respond", why)

    async def _cancel_without_bucket(self, scope: trio.CancelScope) -> None:
        await trio.sleep(BROWSE_OUTAGE_S_MAX)
        while True:
            if self._source.outage.age_s >= BROWSE_OUTAGE_S_MAX:
                scope.cancel()
            await trio.sleep(_POLL_S)

    async def _page(self, target: bytes) -> Reply:
        path, _, text = target.partition(b"?")
        fields = parse_qs(text.decode("latin-1"))
        query = {key: found[-1] for key, found in fields.items()}
        path = path.removeprefix(b"/")
        if path in ASSETS:
            return Reply(http_server.OK, *ASSETS[path])
        if path == b"go":
            return await self._go(query)
        if path == b"mount":
            return await mount_page.mount(self._watch, self._render)
        first, _, rest = path.partition(b"/")
        if first in _OF_TXG:
            number, _, rest = rest.partition(b"/")
            if not _TXG.fullmatch(number):
                raise WrongAddressError("the address must contain a transaction group number")
            wanted = Wanted(Txg(int(number)), _names(rest), query)
            return await _OF_TXG[first](self._source, self._render, wanted)
        if first in _OF_PATH and (first or not rest):
            wanted = Wanted(Txg(0), _names(rest), query)
            return await _OF_PATH[first](self._source, self._render, wanted)
        raise WrongAddressError("there is no page at this address")

    async def _go(self, query: dict[str, str]) -> Reply:
        """Redirect the browser to the page of a point in time that the user typed."""
        wanted = option_syntax.point_in_time("at", query.get("at", "newest"))
        link = await self._source.find(wanted)
        path = to_url(b"/".join(_names(query.get("path", "").encode())))
        return Reply(http_server.SEE_OTHER, headers={"location": f"/at/{link.txg}/{path}"})

    def _error(self, target: bytes, status: int, title: str, why: str) -> Reply:
        is_framed = _kind(target) in _FRAMED
        return page(self._render("error.html", title=title, why=why, is_framed=is_framed), status)


def _kind(target: bytes) -> bytes:
    """Return the first component of a URL's path, which selects the page."""
    return target.partition(b"?")[0].removeprefix(b"/").partition(b"/")[0]


def _names(path: bytes) -> list[bytes]:
    found = from_url(path)
    if found is None:
        raise WrongAddressError("the address contains an invalid path")
    return found
