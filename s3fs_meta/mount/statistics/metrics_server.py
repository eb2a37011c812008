"""The server that ``-o metrics=ADDR:PORT`` starts: the statistics of a mount for Prometheus.

Owns: refusing requests, the choice of the format. Does not know: the names of metrics
(``prometheus``), how statistics are collected, connections (``http_server``).
Keeps: at most METRICS_CONNECTIONS_MAX requests at a time. A thread makes one page at a time, and a
page is reused for METRICS_PAGE_S. Neither a client nor a bug in this module can end the mount.
Clients can only read numbers (GET, HEAD), so there is no authentication.
Tasks: one ``serve`` per mount.
Source: RFC 9110; https://prometheus.io/docs/instrumenting/exposition_formats.
"""

import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from s3fs_meta.background_task import in_thread
from s3fs_meta.mount import http_server
from s3fs_meta.mount.http_server import Bounds, HttpRequest, HttpServer, Reply
from s3fs_meta.mount.limits import (
    METRICS_CONNECTIONS_MAX,
    METRICS_PAGE_S,
    METRICS_REQUEST_BYTES_MAX,
    METRICS_S_MAX,
)
from s3fs_meta.mount.statistics import prometheus
from s3fs_meta.mount.statistics.prometheus import MountFigures
from s3fs_meta.options.listen_address import Address

_PATH: Final = b"/metrics"
_HOST: Final = re.compile(r"(\[[^\]]+\]|[^:]+)(?::[0-9]{1,5})?")  # Host header (RFC 9110, 7.2)
_BOUNDS: Final = Bounds(
    METRICS_CONNECTIONS_MAX, METRICS_REQUEST_BYTES_MAX, METRICS_S_MAX, METRICS_S_MAX
)


Collect = Callable[[], Awaitable[Mapping[str, Any]]]


async def _nothing() -> Mapping[str, Any]:  # noqa: RUF029 - has the type of a waiting function
    """Return an empty mapping as the statistics before ``serve`` is called."""
    return {}


class MetricsServer:
    """A server that sends the statistics of one mount to clients."""

    def __init__(self, mountpoint: str) -> None:
        """Create a server that does not listen yet; *mountpoint* is the label of all samples."""
        self._mountpoint = mountpoint
        self.address = ""  # the address on which the server listens
        self._collect: Collect = _nothing
        self._server = HttpServer(_BOUNDS, {})
        self._is_loopback = True
        self._making = trio.Lock()
        # The last page in each format (True: OpenMetrics), and the time at which it was made.
        self._pages: dict[bool, tuple[float, bytes]] = {}

    async def listen(self, address: Address) -> None:
        """Listen on an address; clients wait until ``serve`` runs.

        Raises:
            SettingsError: the address cannot be used.
        """
        await self._server.listen(address, "metrics=")
        self._is_loopback = address.is_loopback
        self.address = str(self._server.address)

    def close(self) -> None:
        """Close the listening socket of the server. Never yields to other tasks."""
        self._server.close()

    async def serve(self, collect: Collect) -> None:
        """Answer requests until cancelled. Call ``listen`` first.

        Args:
            collect: returns the statistics of the mount.
        """
        self._collect = collect
        await self._server.serve(self._answer)

    async def _answer(self, request: HttpRequest) -> Reply:
        refused = self._refusal(request)
        if refused is not None:
            return refused
        with trio.move_on_after(METRICS_S_MAX):
            open_metrics = "application/openmetrics-text" in _header(request, b"accept")
            content_type = prometheus.OPEN_METRICS if open_metrics else prometheus.PLAIN
            page = await self._page(open_metrics=open_metrics)
            return Reply(http_server.OK, page, content_type)
        return Reply(http_server.TIMEOUT, b"the mount did not report its figures in time\n")

    def _refusal(self, request: HttpRequest) -> Reply | None:
        """Return the error reply to a refused request, or None if the request is accepted.

        A web page could make a browser on this host resolve the page's host name to 127.0.0.1, and
        could then read the statistics. On loopback, only names of this host are therefore accepted.
        """
        if self._is_loopback and not _is_own_name(_header(request, b"host")):
            return Reply(http_server.MISDIRECTED, b"this is not the host of these figures\n")
        if request.target.partition(b"?")[0] != _PATH:
            return Reply(http_server.NOT_FOUND, b"the figures are at /metrics\n")
        if request.method not in {"GET", "HEAD"}:
            return Reply(http_server.METHOD, b"only GET and HEAD\n")
        return None

    async def _page(self, *, open_metrics: bool) -> bytes:
        """Return the statistics as text, at most METRICS_PAGE_S old."""
        async with self._making:
            made_s, page = self._pages.get(open_metrics, (-METRICS_PAGE_S, b""))
            if trio.current_time() - made_s < METRICS_PAGE_S:
                return page
            reading = MountFigures(self._mountpoint, await self._collect())
            page = await in_thread(lambda: prometheus.text([reading], open_metrics=open_metrics))
            self._pages[open_metrics] = trio.current_time(), page
            return page


def _header(request: HttpRequest, wanted: bytes) -> str:
    """Return the value of a header, or "" if the request does not contain it."""
    return request.headers.get(wanted, b"").decode(errors="replace")


def _is_own_name(host: str) -> bool:
    """Return whether a Host header is missing, or contains an IP address or this host's name."""
    match = _HOST.fullmatch(host)
    if match is None:
        return not host
    name = match[1].lower()
    if name in {"localhost", socket.gethostname().lower()}:
        return True
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
