"""Tests of access to the browse pages, with a login token, a cookie and a secret path."""

import re

import pytest

from s3fs_meta.browse.access import Access, leading_to, new_path
from s3fs_meta.mount.http_server import HttpRequest, Reply
from s3fs_meta.options.listen_address import Address

HOST = {b"host": b"127.0.0.1:8080"}


def made() -> Access:
    """Return the access rules of a new server."""
    return Access(Address("127.0.0.1", 8080), new_path())


def status_of(reply: Reply | None) -> int:
    """Return the HTTP status of a refused request, or 200 if the request is allowed."""
    return 200 if reply is None else reply.status


def cookie_of(access: Access) -> tuple[bytes, str]:
    """Exchange the token for a cookie, and return the cookie and its attributes."""
    target = access.url.removeprefix("http://127.0.0.1:8080").encode()
    reply = access.refusal(HttpRequest("GET", target, HOST))
    assert reply is not None
    cookie, _, flags = reply.headers["set-cookie"].partition("; ")
    return cookie.encode(), flags


def test_login_token_is_valid_once_and_sets_a_strict_cookie() -> None:
    access = made()
    target = access.url.removeprefix("http://127.0.0.1:8080").encode()
    assert status_of(access.refusal(HttpRequest("HEAD", target, HOST))) == 403
    cookie, flags = cookie_of(access)
    assert flags == f"HttpOnly; SameSite=Strict; Path={access.root}"
    assert status_of(access.refusal(HttpRequest("GET", target, HOST))) == 403
    inside = f"{access.root}/at/2/".encode()
    assert access.refusal(HttpRequest("GET", inside, {**HOST, b"cookie": cookie})) is None
    assert status_of(access.refusal(HttpRequest("GET", inside, HOST))) == 403


def test_login_page_opens_the_browse_pages_without_a_redirect() -> None:
    """Browsers omit a strict cookie after a redirect that another program or page began."""
    access = made()
    target = access.url.removeprefix("http://127.0.0.1:8080").encode()
    reply = access.refusal(HttpRequest("GET", target, HOST))
    assert reply is not None
    assert reply.status == 200
    assert f'content="0; url={access.root}/"'.encode() in reply.content
    assert '"x&quot;&gt;y"' in leading_to('x">y')


def test_browser_sends_the_cookie_only_to_urls_below_the_secret_path() -> None:
    """A cookie for the path "/" would also be sent to another user's server on another port."""
    access, other = made(), made()
    cookie, _ = cookie_of(access)
    assert access.root != other.root
    assert re.fullmatch("/[A-Za-z0-9_-]{20,}", access.root)
    for path in (b"/", b"/at/2/", other.root.encode(), access.root.encode() + b"x/", b"//x"):
        request = HttpRequest("GET", path, {**HOST, b"cookie": cookie})
        assert status_of(access.refusal(request)) == 403


def test_browse_request_from_a_page_of_another_site_is_refused() -> None:
    access = made()
    cookie, _ = cookie_of(access)
    for site, status in (
        (b"same-origin", 200),
        (b"none", 200),
        (b"same-site", 403),
        (b"cross-site", 403),
        (b"", 403),
    ):
        headers = {**HOST, b"cookie": cookie, b"sec-fetch-site": site}
        request = HttpRequest("GET", access.root.encode(), headers)
        assert status_of(access.refusal(request)) == status


def test_login_token_of_another_browse_server_is_refused() -> None:
    access, other = made(), made()
    target = b"/?" + other.url.partition("?")[2].encode()
    assert status_of(access.refusal(HttpRequest("GET", target, HOST))) == 403


def test_host_header_may_omit_the_port_only_on_port_80() -> None:
    for port, status in ((80, 403), (8080, 421)):
        access = Access(Address("127.0.0.1", port), new_path())
        reply = access.refusal(HttpRequest("GET", b"/", {b"host": b"127.0.0.1"}))
        assert status_of(reply) == status


def test_browse_request_with_a_wrong_cookie_is_refused() -> None:
    access = made()
    cookie, _ = cookie_of(access)
    for wrong in (b"", b"x", cookie + b"x", b"a=b, c", b"\xff=\xff", cookie.replace(b"=", b"x=")):
        headers = {**HOST, b"cookie": wrong}
        assert status_of(access.refusal(HttpRequest("GET", access.root.encode(), headers))) == 403


@pytest.mark.parametrize("other", [b"theme=dark mode", b"flag", b"a=\xff", b"=", b'a="b'])
def test_invalid_cookies_of_other_servers_are_ignored(other: bytes) -> None:
    """Browsers send cookies to all ports of a host, so other local servers can add cookies."""
    access = made()
    cookie, _ = cookie_of(access)
    inside = f"{access.root}/at/2/".encode()

    for both in (cookie + b"; " + other, other + b"; " + cookie):
        assert access.refusal(HttpRequest("GET", inside, {**HOST, b"cookie": both})) is None
    assert status_of(access.refusal(HttpRequest("GET", inside, {**HOST, b"cookie": other}))) == 403
