"""Who may see the pages: the browser to which the user gave the printed URL.

Owns: the token, the cookie, names of this server in the Host header. Does not know: pages.
Keeps: the token is valid once. A web page of another host can neither guess the cookie nor, by
resolving its own name to 127.0.0.1, reach this server under that name.
"""

import hmac
import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from s3fs_meta.browse.http_server import FORBIDDEN, MISDIRECTED, SEE_OTHER, Reply, Request
from s3fs_meta.model import Address

_TOKEN_BYTES: Final = 32
_HTTP_PORT: Final = 80  # browsers leave it out of the Host header
_PLAIN: Final = "text/plain; charset=utf-8"


class Access:
    """The secrets of one run of the server."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._token: str | None = secrets.token_urlsafe(_TOKEN_BYTES)
        self._cookie = secrets.token_urlsafe(_TOKEN_BYTES)
        # Cookies of one host are sent to all its ports, so several servers need different names.
        self._name = f"s3fs-meta-{address.port}"
        names = {"localhost", "127.0.0.1", "[::1]", str(Address(address.host, 0))[:-2]}
        self._hosts = {f"{name}:{address.port}" for name in names}
        if address.port == _HTTP_PORT:
            self._hosts |= names

    @property
    def url(self) -> str:
        """Return the URL for the user; it works once."""
        return f"http://{self._address}/?token={self._token}"

    def refusal(self, request: Request) -> Reply | None:
        """Return the reply to a request that does not get its page, None if it gets it."""
        host = request.headers.get(b"host", b"").decode("latin-1").lower()
        if host not in self._hosts:
            return Reply(MISDIRECTED, b"this server has another name\n", _PLAIN)
        path, _, query = request.target.partition(b"?")
        given = parse_qs(query.decode("latin-1")).get("token", [""])[0] if path == b"/" else ""
        if given and self._takes(given, request.method):
            flags = "HttpOnly; SameSite=Strict; Path=/"
            cookie = f"{self._name}={self._cookie}; {flags}"
            return Reply(SEE_OTHER, headers={"location": "/", "set-cookie": cookie})
        if self._has_cookie(request):
            return None
        why = (
            "This page is shown only to the browser that opened the URL which s3fs-meta browse"
            " printed. The URL works once: start the command again for a new one.\n"
        )
        return Reply(FORBIDDEN, why.encode(), _PLAIN)

    def _takes(self, given: str, method: str) -> bool:
        """Return whether a token is the valid one; afterwards it is not any more."""
        is_valid = self._token is not None and _is_equal(given, self._token)
        if is_valid and method == "GET":
            self._token = None
            return True
        return False

    def _has_cookie(self, request: Request) -> bool:
        try:
            found = SimpleCookie(request.headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        return self._name in found and _is_equal(found[self._name].value, self._cookie)


def _is_equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
