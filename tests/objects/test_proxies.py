"""Requests through an HTTP proxy that environment variables select."""

import pytest
import trio

from s3fs_meta.errors import StoreAccessError, TransientStoreError
from s3fs_meta.limits import PACK_BYTES_MAX
from s3fs_meta.objects.s3 import S3Store
from s3fs_meta.objects.s3_access import S3Place
from tests.objects.s3_double import (
    BUCKET,
    KEY,
    PUT_DONE,
    Drip,
    Drop,
    Hang,
    Reply,
    S3Double,
    s3_double,
)
from tests.polling import WAIT_S_MAX

SERVER = "http://s3.invalid:9000"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the user's own proxy settings."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def with_user(double: S3Double) -> str:
    """Return the URL of a proxy that contains a user name and a password."""
    return double.url.replace("://", "://user:p%40ss@")


async def test_request_through_a_proxy_contains_the_password_of_the_proxy(
    double: S3Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", with_user(double))
    double.answer(PUT_DONE)

    await S3Store(BUCKET, place=S3Place(SERVER)).put(KEY, b"content")

    (seen,) = double.seen
    assert seen.headers["host"] == "s3.invalid:9000"
    assert seen.headers["proxy-authorization"] == "Basic dXNlcjpwQHNz"


async def test_no_proxy_variable_excludes_the_server_from_the_proxy(
    double: S3Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    double.answer(PUT_DONE)

    await S3Store(BUCKET, place=S3Place(double.url)).put(KEY, b"content")


@pytest.mark.parametrize("body", [b"", b"<html><body>Who are you?</body></html>"])
async def test_proxy_that_requires_a_password_is_reported(
    double: S3Double, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setenv("HTTP_PROXY", double.url)
    double.answer_always(Reply(407, body, {"Content-Type": "text/html"}))

    with pytest.raises(StoreAccessError, match="the proxy requires a user and a password"):
        await S3Store(BUCKET, place=S3Place(SERVER)).get(KEY, PACK_BYTES_MAX)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_unreachable_proxy_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    with s3_double() as gone:
        url = with_user(gone)
    monkeypatch.setenv(f"{scheme.upper()}_PROXY", url)
    place = S3Place(SERVER.replace("http", scheme))

    expected = rf"through the proxy {gone.url} \(Connection refused\); check HTTP_PROXY"
    with pytest.raises(TransientStoreError, match=expected) as caught:
        await S3Store(BUCKET, place=place).get(KEY, PACK_BYTES_MAX)

    assert caught.value.unconnected


@pytest.mark.parametrize(
    "url",
    ["http://[bad", "not a url", "http://:secret@", "ftp://127.0.0.1:1", "http://127.0.0.1:port"],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_malformed_url_of_a_proxy_is_reported_without_a_retry(
    monkeypatch: pytest.MonkeyPatch, scheme: str, url: str
) -> None:
    """The message omits the URL, which may contain a password."""
    name = f"{scheme.upper()}_PROXY"
    monkeypatch.setenv(name, url)
    place = S3Place("http://127.0.0.1:1".replace("http", scheme))

    with pytest.raises(StoreAccessError, match=f"{name} is not the URL of an HTTP proxy") as caught:
        await S3Store(BUCKET, place=place).get(KEY, PACK_BYTES_MAX)

    assert url not in str(caught.value)


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:1", ""])
async def test_outage_is_retried_despite_a_malformed_proxy_of_another_protocol(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    """The variable for http may contain a SOCKS proxy, which requests over https do not use."""
    monkeypatch.setenv("HTTP_PROXY", "socks5://127.0.0.1:1")
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(TransientStoreError):
        await S3Store(BUCKET, place=S3Place("https://127.0.0.1:1")).get(KEY, PACK_BYTES_MAX)


async def test_closed_connection_is_an_outage_despite_a_malformed_proxy_that_is_not_used(
    double: S3Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    double.answer(Drop())
    with pytest.raises(TransientStoreError):
        await S3Store(BUCKET, place=S3Place(double.url)).get(KEY, PACK_BYTES_MAX)


async def test_refusal_of_a_proxy_to_open_a_tunnel_is_reported(
    double: S3Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test server does not know the method CONNECT, so it refuses a tunnel."""
    monkeypatch.setenv("HTTPS_PROXY", with_user(double))
    place = S3Place(SERVER.replace("http", "https"))

    with pytest.raises(TransientStoreError, match=r"Tunnel connection failed: 501.*HTTPS_PROXY"):
        await S3Store(BUCKET, place=place).get(KEY, PACK_BYTES_MAX)


@pytest.mark.parametrize("answer", [Hang(), Drip(b"HTTP/1.1 200 OK\r\nX-Slow:", pause_s=0.01)])
async def test_proxy_that_does_not_respond_times_out(
    double: S3Double, monkeypatch: pytest.MonkeyPatch, answer: Hang | Drip
) -> None:
    monkeypatch.setenv("HTTP_PROXY", double.url)
    double.answer_always(answer)
    place = S3Place(SERVER, connect_timeout_s=0.2, read_timeout_s=0.2)

    with trio.fail_after(WAIT_S_MAX), pytest.raises(TransientStoreError):
        await S3Store(BUCKET, place=place).get(KEY, PACK_BYTES_MAX)
