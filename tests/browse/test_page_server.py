"""Tests of the web server of the browse command, which listens on loopback only."""

import pytest
import trio

from s3fs_meta.browse import page_server
from s3fs_meta.errors import SettingsError
from s3fs_meta.options.listen_address import Address


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
async def test_page_server_listens_only_on_loopback_addresses(host: str) -> None:
    with pytest.raises(SettingsError, match="served to this host only"):
        await page_server.listening(Address(host, 0))


async def test_page_server_accepts_connections_before_the_first_page_can_be_served() -> None:
    """A client may connect as soon as the browse command prints the URL."""
    server = await page_server.listening(Address("127.0.0.1", 0))
    try:
        async with await trio.open_tcp_stream("127.0.0.1", server.address.port):
            pass
    finally:
        server.close()


def test_content_security_policy_allows_only_the_script_of_the_browse_server() -> None:
    """The content security policy allows one script by its hash, and no other source."""
    policy = dict(
        part.strip().split(" ", 1)
        for part in page_server.HEADERS["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"].startswith("'sha256-")
    assert " " not in policy["script-src"]
