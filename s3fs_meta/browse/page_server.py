"""The server of the pages: it listens only on loopback, and its headers protect every reply.

Owns: the headers, the bounds of one user's requests. Does not know: connections
(``mount.http_server``), the page for a request.
Source: https://www.w3.org/TR/CSP3.
"""

from typing import Final

from s3fs_meta.browse.assets import SCRIPT
from s3fs_meta.browse.limits import (
    BROWSE_CONNECTIONS_MAX,
    BROWSE_REQUEST_BYTES_MAX,
    BROWSE_REQUEST_S_MAX,
    BROWSE_SEND_S_MAX,
)
from s3fs_meta.errors import SettingsError
from s3fs_meta.mount import http_server
from s3fs_meta.mount.http_server import Bounds, HttpServer, Reply
from s3fs_meta.options.listen_address import Address

HTML: Final = "text/html; charset=utf-8"
_BOUNDS: Final = Bounds(
    BROWSE_CONNECTIONS_MAX, BROWSE_REQUEST_BYTES_MAX, BROWSE_REQUEST_S_MAX, BROWSE_SEND_S_MAX
)


def _policy(ancestors: str) -> str:
    """Return the content security policy of a page; *ancestors* may show the page in a frame."""
    return (
        f"default-src 'none'; script-src '{SCRIPT.hash}'; style-src 'self'; img-src 'self';"
        f" frame-src 'self'; form-action 'self'; frame-ancestors {ancestors}; base-uri 'none'"
    )


# Browsers must not cache the pages, and must not interpret the content of files as pages.
HEADERS: Final = {
    "content-security-policy": _policy("'none'"),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
# Headers of a page that other pages of this server show in a frame.
FRAME_HEADERS: Final = {
    "content-security-policy": _policy("'self'"),
    "x-frame-options": "SAMEORIGIN",
}


async def listening(address: Address) -> HttpServer:
    """Return a server that listens on an address.

    Raises:
        SettingsError: the address is not on loopback, or cannot be used.
    """
    if not address.is_loopback:
        raise SettingsError(
            f"cannot listen on {address}: it is not a loopback address; the pages are served to"
            " this host only, use ssh -L to reach them from another host"
        )
    server = HttpServer(_BOUNDS, HEADERS)
    await server.listen(address)
    return server


def page(content: bytes, status: int = http_server.OK) -> Reply:
    """Return the HTTP reply that contains a page."""
    return Reply(status, content, HTML)
