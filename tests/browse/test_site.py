"""The URLs of the site, and who gets them."""

import pytest

from tests.browse.conftest import SECOND, Served

pytestmark = pytest.mark.mount


def test_point_in_time_is_chosen_by_a_form(served: Served) -> None:
    found = served.ask("/go?at=newest&path=reports/report.txt")
    assert (found.status, found.headers["Location"]) == (
        303,
        f"/at/{served.txg}/reports/report.txt",
    )
    wrong = served.ask("/go?at=nonsense")
    assert wrong.status == 404
    assert "is not a point in time" in wrong.text


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/at/x/", "/at/2/nothing", "/at/999/", "/at/2/..%2f..", "/at/2/%2e%2e/"),
        *("/at/2/a%00", "/content/2/reports", "/tar/2/reports/report.txt", "/versions/nothing"),
        *("/?first=x", "/?first=9&last=1", "/at/2/reports?from=-1"),
        f"/compare/reports?old=1&new={10**18}",
    ],
)
def test_unknown_page_is_not_found(served: Served, path: str) -> None:
    reply = served.ask(path)
    assert reply.status == 404, reply.text
    assert "<h1>Not " in reply.text


def test_requests_without_the_cookie_are_refused(served: Served) -> None:
    for path in ("/", "/style.css", "/at/2/", "/content/2/reports/report.txt", "/nothing"):
        for cookie in ("", "x=y", f"{served.cookie}x", served.cookie.replace("=", "=x")):
            assert served.ask(path, Cookie=cookie).status == 403
    assert served.ask(f"/?token={served.token}", Cookie="").status == 403  # it worked once


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{}", "127.0.0.1:1", "127.0.0.1"])
def test_request_under_another_name_is_refused(served: Served, host: str) -> None:
    assert served.ask("/", Host=host.format(served.port)).status == 421
    assert served.ask("/", Host=f"localhost:{served.port}").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_only_get_and_head_are_answered(served: Served, method: str) -> None:
    assert served.ask("/", method).status == 405
    head = served.ask(f"/content/{served.txg}/reports/report.txt", "HEAD")
    assert (head.status, head.content) == (200, b"")
    assert head.headers["Content-Length"] == str(len(SECOND))


@pytest.mark.parametrize("path", ["/", "/at/2/reports", "/nothing", "/style.css"])
def test_every_reply_has_the_headers_of_protection(served: Served, path: str) -> None:
    headers = served.ask(path).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith(
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self';"
        " frame-ancestors 'none'"
    )
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
