"""Access control: only the browser that opens the printed URL may read the pages.

Owns: the token, the cookie, the secret path of the pages, the names of this server that a Host
header may contain.
Does not know: pages.
Keeps: the token can be used only once. A web page of another host cannot guess the cookie. If the
name of another site resolves to 127.0.0.1, pages of that site cannot read this server. A page of
another server on this host cannot make the browser send requests to this server.

Browsers send a cookie to all ports of a host, even to a server of another user. But they send the
cookie only below the path for which it was set, and only this server knows the path.
"""

import hmac
import html
import secrets
from typing import Final
from urllib.parse import parse_qs

from s3fs_meta.mount.http_server import FORBIDDEN, MISDIRECTED, HttpRequest, Reply
from s3fs_meta.options.listen_address import Address

_TOKEN_BYTES: Final = 32
_PATH_BYTES: Final = 16
_HTTP_PORT: Final = 80  # browsers omit port 80 in the Host header
# Accepted values of Sec-Fetch-Site; "none" means a typed URL or a bookmark.
_OWN_SITES: Final = frozenset({b"same-origin", b"none"})

# This page opens the next URL itself, because a redirect would lose the SameSite=Strict cookie.
# Browsers omit the cookie in a chain of redirects that another program started.
_ENTRANCE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>s3fs-meta</title>
<meta http-equiv="refresh" content="0; url={url}"></head>
<body><p><a href="{url}">Open the pages</a></p></body></html>
"""
_HTML: Final = "text/html; charset=utf-8"


def new_path() -> str:
    """Return a random path below which a new server serves all pages."""
    return "/" + secrets.token_urlsafe(_PATH_BYTES)


def leading_to(url: str) -> str:
    """Return a page that makes the browser open a URL."""
    return _ENTRANCE.format(url=html.escape(url))


class Access:
    """The token, the cookie and the secret path of one run of the server."""

    def __init__(self, address: Address, root: str) -> None:
        """Create the token, the cookie and the path prefix of a server.

        Args:
            address: the address on which the server listens.
            root: a path from ``new_path``.
        """
        self._address = address
        self.root = root
        self._token: str | None = secrets.token_urlsafe(_TOKEN_BYTES)
        self._cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        # The port makes the cookie's name unique among the servers on this host.
        self._name = f"s3fs-meta-{address.port}"
        names = {"localhost", "127.0.0.1", "[::1]", str(Address(address.host, 0))[:-2]}
        self._hosts = {f"{name}:{address.port}" for name in names}
        if address.port == _HTTP_PORT:
            self._hosts |= names

    @property
    def url(self) -> str:
        """Return the URL for the user; the URL works only once."""
        return f"http://{self._address}/?token={self._token}"

    def refusal(self, request: HttpRequest) -> Reply | None:
        """Return the error reply if a request must be refused, otherwise None."""
        host = request.headers.get(b"host", b"").decode("latin-1").lower()
        if host not in self._hosts:
            return Reply(MISDIRECTED, b"this server has a different name\n")
        path, _, query = request.target.partition(b"?")
        if path == b"/":
            given = parse_qs(query.decode("latin-1")).get("token", [""])[0]
            if given and self._takes(given, request.method):
                return self._entrance()
        elif self._is_inside(path) and self._has_cookie(request):
            if request.headers.get(b"sec-fetch-site", b"none") in _OWN_SITES:
                return None
            return Reply(FORBIDDEN, b"requests from other pages are refused\n")
        why = (
            "Only the browser that opened the URL printed by s3fs-meta browse can see this page."
            " The URL works once; run the command again to get a new one.\n"
        )
        return Reply(FORBIDDEN, why.encode())

    def _entrance(self) -> Reply:
        flags = f"HttpOnly; SameSite=Strict; Path={self.root}"
        cookie = f"{self._name}={self._cookie}; {flags}"
        page = leading_to(f"{self.root}/").encode()
        return Reply(200, page, _HTML, {"set-cookie": cookie})

    def _takes(self, given: str, method: str) -> bool:
        """Invalidate the token if a GET request contains it; return whether it does."""
        is_valid = self._token is not None and _is_equal(given, self._token)
        if is_valid and method == "GET":
            self._token = None
            return True
        return False

    def _is_inside(self, path: bytes) -> bool:
        first = b"/".join(path.split(b"/", 2)[:2])
        return _is_equal(first.decode("latin-1"), self.root)

    def _has_cookie(self, request: HttpRequest) -> bool:
        """Return whether a request has the cookie of this server.

        A browser also sends the cookies of other servers on this host. One of them may be invalid;
        the standard library then returns none of the cookies.
        """
        header = request.headers.get(b"cookie", b"").decode("latin-1")
        pairs = [pair.strip().partition("=") for pair in header.split(";")]
        return any(
            name == self._name and _is_equal(value, self._cookie) for name, _, value in pairs
        )


def _is_equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
