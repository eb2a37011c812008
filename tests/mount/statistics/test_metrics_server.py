"""Tests of serving the statistics of a mount over HTTP."""

import http.client
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import pytest
import trio
from prometheus_client import parser
from prometheus_client.openmetrics import parser as open_parser

from s3fs_meta.errors import SettingsError
from s3fs_meta.mount.limits import (
    METRICS_CONNECTIONS_MAX,
    METRICS_PAGE_S,
    METRICS_REQUEST_BYTES_MAX,
)
from s3fs_meta.mount.statistics import prometheus
from s3fs_meta.mount.statistics.metrics_server import MetricsServer
from s3fs_meta.options.listen_address import Address
from tests.polling import WAIT_S_MAX

OPEN_METRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}


class Source:
    """A source of statistics that counts how often they are collected."""

    def __init__(self) -> None:
        self.collected = 0

    async def collect(self) -> Mapping[str, Any]:
        """Return the statistics of a small mount."""
        await trio.lowlevel.checkpoint()
        self.collected += 1
        names = ("url", "uuid", "label")
        return dict.fromkeys(names, "x") | {"state": "serving", "store": {}, "inodes": 5}


class Served(NamedTuple):
    """A metrics server, its port, and the source of its statistics."""

    port: int
    source: Source

    async def get(
        self, path: str = "/metrics", method: str = "GET", **headers: str
    ) -> tuple[int, str, bytes]:
        """Return status, content type and content of a reply."""

        def ask() -> tuple[int, str, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S_MAX)
            connection.request(method, path, headers=headers)
            reply = connection.getresponse()
            return reply.status, reply.headers["Content-Type"], reply.read()

        return await trio.to_thread.run_sync(ask)


@pytest.fixture
async def served(nursery: trio.Nursery) -> AsyncIterator[Served]:
    """Return a metrics server that runs on a free loopback port."""
    source = Source()
    server = MetricsServer("/m")
    await server.listen(Address("127.0.0.1", 0))
    nursery.start_soon(server.serve, source.collect)
    yield Served(int(server.address.rpartition(":")[2]), source)
    nursery.cancel_scope.cancel()


def _names(parse: Any, page: bytes) -> set[str]:
    return {one.name for one in parse.text_string_to_metric_families(page.decode())}


async def test_metrics_format_depends_on_the_accept_header(served: Served) -> None:
    status, content_type, plain = await served.get()
    open_status, open_type, page = await served.get(**OPEN_METRICS)

    assert (status, content_type) == (200, prometheus.PLAIN)
    assert (open_status, open_type) == (200, prometheus.OPEN_METRICS)
    assert "s3fs_meta_inodes" in _names(parser, plain)
    assert "s3fs_meta_inodes" in _names(open_parser, page)
    assert page.endswith(b"# EOF\n")


async def test_metrics_page_is_made_only_once_for_concurrent_clients(
    served: Served, mock_clock: trio.testing.MockClock
) -> None:
    """The clock of the test stands still, so the page does not expire on a slow machine."""
    async with trio.open_nursery() as clients:
        for _ in range(METRICS_CONNECTIONS_MAX // 2):
            clients.start_soon(served.get)

    assert served.source.collected == 1


async def test_metrics_page_is_made_again_after_it_expires(
    served: Served, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.jump(10)
    await served.get()
    await served.get()
    assert served.source.collected == 1
    mock_clock.jump(METRICS_PAGE_S)
    await served.get()

    assert served.source.collected == 2


async def test_metrics_page_is_cached_separately_for_each_format(served: Served) -> None:
    _status, _type, page = await served.get(**OPEN_METRICS)
    _status, _type, plain = await served.get()

    assert (page.endswith(b"# EOF\n"), plain.endswith(b"# EOF\n")) == (True, False)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/metrics", "HEAD", 200), ("/metrics?x=1", "GET", 200), ("/", "GET", 404)]
    + [("/metrics", method, 405) for method in ("POST", "PUT", "DELETE")],
)
async def test_metrics_server_serves_only_the_metrics_page(
    served: Served, path: str, method: str, status: int
) -> None:
    assert (await served.get(path, method))[0] == status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9105", 200),
        ("[::1]:9105", 200),
        ("localhost", 200),
        (socket.gethostname(), 200),
        ("attacker.example:9105", 421),
        ("127.0.0.1.attacker.example", 421),
        ("12345", 421),
        ("[::1]]:80", 421),
        (":80", 421),
        ("127.0.0.1:1:2", 421),
    ],
)
async def test_metrics_request_with_another_host_name_is_refused(
    served: Served, host: str, status: int
) -> None:
    """A web page whose host name resolves to 127.0.0.1 cannot read the metrics."""
    found = await served.get(Host=host)

    assert found[0] == status
    assert (b"s3fs_meta" in found[2]) == (status == 200)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nx: " + b"y" * METRICS_REQUEST_BYTES_MAX, b"431"),
        (b"\r\n" * METRICS_REQUEST_BYTES_MAX, b"400"),
        (b"\x16\x03\x01\x02\x00\x01" + bytes(300), b"400"),  # The client starts a TLS connection.
        (b"GET /metrics HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"POST /metrics HTTP/1.0\r\nContent-Length: 9999999999999999999999\r\n\r\n", b"400"),
        (b"CONNECT x HTTP/1.0\r\n\r\n", b"404"),
        (b"GET /metrics HTTP/1.0\r\nHost: \xc2\xb2\r\n\r\n", b"421"),
        (b"GET /metrics HTTP/1.0\r\nUpgrade: h2c\r\nAccept: \xff\r\n\r\n", b"200"),
    ],
)
async def test_malformed_metrics_requests_are_answered_without_a_log_line(
    served: Served, sent: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", served.port)
    async with stream:
        await stream.send_all(sent)
        assert (await stream.receive_some()).split()[1] == status
    assert (await served.get())[0] == 200
    assert not caplog.records


async def test_idle_metrics_clients_do_not_block_other_clients(served: Served) -> None:
    """If all connections are in use, the oldest connection without a request is closed."""
    streams = [
        await trio.open_tcp_stream("127.0.0.1", served.port) for _ in range(METRICS_CONNECTIONS_MAX)
    ]
    await trio.testing.wait_all_tasks_blocked()
    assert (await served.get())[0] == 200
    assert await streams[0].receive_some() == b""
    for stream in streams:
        await stream.aclose()


async def test_silent_metrics_client_is_disconnected(
    served: Served, autojump_clock: trio.testing.MockClock
) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", served.port)
    async with stream:
        assert await stream.receive_some() == b""


async def test_error_about_a_metrics_port_in_use_names_the_port(served: Served) -> None:
    with pytest.raises(SettingsError, match=rf"metrics=127.0.0.1:{served.port}: .*in use"):
        await MetricsServer("/m").listen(Address("127.0.0.1", served.port))


async def test_exception_in_the_statistics_does_not_stop_the_metrics_server(
    nursery: trio.Nursery,
) -> None:
    async def collect() -> Mapping[str, Any]:
        raise ValueError

    server = MetricsServer("/m")
    await server.listen(Address("::1", 0))
    nursery.start_soon(server.serve, collect)
    port = int(server.address.removeprefix("[::1]:"))

    for _ in range(2):
        stream = await trio.open_tcp_stream("::1", port)
        async with stream:
            await stream.send_all(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert await stream.receive_some() == b""
    nursery.cancel_scope.cancel()
