"""The figures of a mount over HTTP, for Prometheus: ``-o metrics=ADDR:PORT``.

Owns: the connections, their limits, the choice of the format. Does not know: the names of metrics
(``prometheus``), how figures are collected.
Keeps: METRICS_CONNECTIONS_MAX connections, METRICS_S_MAX for each, one request of
METRICS_REQUEST_BYTES_MAX. Pages are made in a thread, one at a time, and serve all clients for
METRICS_PAGE_S. A client or a bug here never ends the mount.
Only GET and HEAD of numbers: there is nothing to change, so there is no authentication.
Tasks: one ``serve`` per mount, below it one per connection.
Source: RFC 9110; https://prometheus.io/docs/instrumenting/exposition_formats.
"""

import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import h11
import trio

from s3fs_meta.errors import SettingsError
from s3fs_meta.limits import (
    KIB,
    METRICS_CONNECTIONS_MAX,
    METRICS_PAGE_S,
    METRICS_REQUEST_BYTES_MAX,
    METRICS_S_MAX,
)
from s3fs_meta.model import Address
from s3fs_meta.mount import prometheus
from s3fs_meta.mount.prometheus import Reading

_log = logging.getLogger(__name__)

_PATH: Final = b"/metrics"
_TEXT: Final = "text/plain; charset=utf-8"
_RECEIVE_BYTES: Final = 4 * KIB
_HOST: Final = re.compile(r"(\[[^\]]+\]|[^:]+)(?::[0-9]{1,5})?")  # RFC 9110, 7.2
_OK, _BAD, _NOT_FOUND, _METHOD, _MISDIRECTED = 200, 400, 404, 405, 421


Collect = Callable[[], Awaitable[Mapping[str, Any]]]


async def _nothing() -> Mapping[str, Any]:  # noqa: RUF029 - has the type of a waiting function
    """Return no figures."""
    return {}


class _Reply(NamedTuple):
    """The reply to one request."""

    status: int
    content: bytes
    content_type: str = _TEXT


class MetricsServer:
    """Serves the figures of one mount."""

    def __init__(self, mountpoint: str) -> None:
        """Make a server that does not listen yet; *mountpoint* is the label of all samples."""
        self._mountpoint = mountpoint
        self.address = ""  # where it listens
        self._collect: Collect = _nothing
        self._listener: trio.SocketListener | None = None
        self._is_loopback = True
        self._connections = 0
        self._making = trio.Lock()
        self._pages: dict[bool, tuple[float, bytes]] = {}  # when it was made, by format

    async def listen(self, address: Address) -> None:
        """Listen on an address; clients wait until ``serve`` answers them.

        Raises:
            SettingsError: the address cannot be used.
        """
        try:
            found = await trio.open_tcp_listeners(address.port, host=address.host)
        except OSError as exc:
            why = exc.strerror or str(exc)
            raise SettingsError(f"cannot serve metrics={address}: {why}; choose another") from exc
        (self._listener,) = found
        self._is_loopback = address.is_loopback
        self.address = str(Address(address.host, self._listener.socket.getsockname()[1]))

    def close(self) -> None:
        """End listening. Schedule point: never."""
        if self._listener is not None:
            self._listener.socket.close()

    async def serve(self, collect: Collect) -> None:
        """Answer requests until cancelled. Call ``listen`` first.

        Args:
            collect: returns the figures of the mount.
        """
        assert self._listener is not None, "it listens"
        self._collect = collect
        await trio.serve_listeners(self._converse, [self._listener])

    async def _converse(self, stream: trio.SocketStream) -> None:
        """Answer the request of one connection, and close the connection."""
        try:
            async with stream:
                if self._connections >= METRICS_CONNECTIONS_MAX:
                    return
                self._connections += 1
                try:
                    with trio.move_on_after(METRICS_S_MAX):
                        await self._answer(stream)
                finally:
                    self._connections -= 1
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the client disconnected
        except Exception:  # noqa: BLE001  # a bug here must not end the mount
            _log.exception("a request for metrics failed because of a bug")

    async def _answer(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=METRICS_REQUEST_BYTES_MAX)
        try:
            request = await _next_request(connection, stream)
        except h11.RemoteProtocolError as exc:
            reply = _Reply(exc.error_status_hint or _BAD, f"{exc}\n".encode())
            await _send(connection, stream, reply)
            return
        reply = self._refusal(request) or await self._page_for(request)
        await _send(connection, stream, reply, has_body=request.method != b"HEAD")

    def _refusal(self, request: h11.Request) -> _Reply | None:
        """Return the error for a request that does not get the page.

        A web page of another host could make a browser on this host resolve the page's own name to
        127.0.0.1, and so read the figures. So on loopback only names of this host are answered.
        """
        if self._is_loopback and not _is_own_name(_header(request, b"host")):
            return _Reply(_MISDIRECTED, b"this is not the host of these figures\n")
        if request.target.partition(b"?")[0] != _PATH:
            return _Reply(_NOT_FOUND, b"the figures are at /metrics\n")
        if request.method not in {b"GET", b"HEAD"}:
            return _Reply(_METHOD, b"only GET and HEAD\n")
        return None

    async def _page_for(self, request: h11.Request) -> _Reply:
        open_metrics = "application/openmetrics-text" in _header(request, b"accept")
        content_type = prometheus.OPEN_METRICS if open_metrics else prometheus.PLAIN
        return _Reply(_OK, await self._page(open_metrics=open_metrics), content_type)

    async def _page(self, *, open_metrics: bool) -> bytes:
        """Return the figures as text, at most METRICS_PAGE_S old."""
        async with self._making:
            made_s, page = self._pages.get(open_metrics, (-METRICS_PAGE_S, b""))
            if trio.current_time() - made_s < METRICS_PAGE_S:
                return page
            reading = Reading(self._mountpoint, await self._collect())
            page = await trio.to_thread.run_sync(
                lambda: prometheus.text([reading], open_metrics=open_metrics)
            )
            self._pages[open_metrics] = trio.current_time(), page
            return page


def _header(request: h11.Request, wanted: bytes) -> str:
    """Return the value of a header; "" without one."""
    values = [value for name, value in request.headers if name == wanted]
    return b",".join(values).decode(errors="replace")


def _is_own_name(host: str) -> bool:
    """Return whether a Host header is missing, has an IP address, or a name of this host."""
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


async def _next_request(connection: h11.Connection, stream: trio.SocketStream) -> h11.Request:
    while True:  # bounded by METRICS_REQUEST_BYTES_MAX and METRICS_S_MAX
        event = connection.next_event()
        if isinstance(event, h11.Request):
            return event
        if event is not h11.NEED_DATA:
            raise trio.BrokenResourceError  # the client closed the connection
        connection.receive_data(await stream.receive_some(_RECEIVE_BYTES))


async def _send(
    connection: h11.Connection, stream: trio.SocketStream, reply: _Reply, *, has_body: bool = True
) -> None:
    headers = [
        ("content-type", reply.content_type),
        ("content-length", str(len(reply.content))),
        ("connection", "close"),
    ]
    body = [h11.Data(data=reply.content)] if has_body else []
    for part in (
        h11.Response(status_code=reply.status, headers=headers),
        *body,
        h11.EndOfMessage(),
    ):
        await stream.send_all(connection.send(part) or b"")
