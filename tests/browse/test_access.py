"""The token, and the cookie that replaces it."""

from s3fs_meta.browse.access import Access
from s3fs_meta.browse.http_server import Request
from s3fs_meta.model import Address

HOST = {b"host": b"127.0.0.1:8080"}


def test_token_works_once_and_becomes_a_strict_cookie() -> None:
    access = Access(Address("127.0.0.1", 8080))
    target = access.url.removeprefix("http://127.0.0.1:8080").encode()
    probe = access.refusal(Request("HEAD", target, HOST))
    first = access.refusal(Request("GET", target, HOST))
    second = access.refusal(Request("GET", target, HOST))

    assert probe is not None
    assert probe.status == 403
    assert first is not None
    assert (first.status, first.headers["location"]) == (303, "/")
    assert first.headers["set-cookie"].endswith("; HttpOnly; SameSite=Strict; Path=/")
    assert second is not None
    assert second.status == 403
    cookie = first.headers["set-cookie"].partition(";")[0].encode()
    assert access.refusal(Request("GET", b"/", {**HOST, b"cookie": cookie})) is None


def test_token_of_another_server_is_refused() -> None:
    access, other = Access(Address("127.0.0.1", 8080)), Access(Address("127.0.0.1", 8080))
    target = b"/?" + other.url.partition("?")[2].encode()
    refused = access.refusal(Request("GET", target, HOST))
    assert refused is not None
    assert refused.status == 403


def test_port_may_be_missing_only_for_http() -> None:
    for port, status in ((80, 403), (8080, 421)):
        reply = Access(Address("127.0.0.1", port)).refusal(
            Request("GET", b"/", {b"host": b"127.0.0.1"})
        )
        assert reply is not None
        assert reply.status == status
