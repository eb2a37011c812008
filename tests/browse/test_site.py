"""Tests of the URLs of the browse pages, and of access to the pages."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import trio
import trio.testing
from typing_extensions import override

from s3fs_meta.browse import templates
from s3fs_meta.browse.access import Access, new_path
from s3fs_meta.browse.limits import BROWSE_ANSWER_S, BROWSE_OUTAGE_S_MAX
from s3fs_meta.browse.pending_pages import PendingPages
from s3fs_meta.browse.site import Site
from s3fs_meta.browse.sources.source import Source
from s3fs_meta.errors import CorruptionError, StoreUnavailableError
from s3fs_meta.model import Txg
from s3fs_meta.mount import http_server
from s3fs_meta.mount.http_server import HttpRequest, Reply
from s3fs_meta.objects.contact import Outage
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.options.listen_address import Address
from tests.browse.conftest import SECOND
from tests.browse.serving import Served


@pytest.mark.mount
def test_browse_form_redirects_to_the_chosen_point_in_time(served: Served) -> None:
    found = served.ask("/go?at=newest&path=reports/report.txt")
    path = f"/at/{served.txg}/reports/report.txt"
    assert (found.status, found.headers["Location"]) == (303, served.root + path)
    for wrong in ("/go?at=nonsense", "/go?at=%ED%A0%80", "/go?at=newest&path=%FF..%2F.."):
        assert served.ask(wrong).status in {303, 404}
    assert "is not a point in time" in served.ask("/go?at=nonsense").text


@pytest.mark.mount
@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/at/x/", "/at/2/nothing", "/at/999/", "/at/2/..%2f..", "/at/2/%2e%2e/"),
        *("/at/2/a%00", "/content/2/reports", "/tar/2/reports/report.txt", "/versions/nothing"),
        *("/?first=x", "/?first=9&last=1", "/at/2/reports?from=-1", "/zip/2/reports/report.txt"),
        *("/inode/2/x", "/inode/2/999999", "/inode/2/1/2", "/space/2/reports/report.txt"),
        *("/space/2/?since=x", "/space/2/?since=999", "/mount", "/plot.js/x", "/content/2/"),
        *(f"/compare/reports?old=1&new={10**18}", "/compare/reports?old=2&new=2-999999"),
    ],
)
def test_unknown_browse_page_returns_status_404(served: Served, path: str) -> None:
    reply = served.ask(path)
    assert reply.status == 404, reply.text
    assert "<h1>Not " in reply.text


@pytest.mark.mount
def test_browse_page_of_a_missing_path_names_the_path(served: Served) -> None:
    reply = served.ask("/at/2/reports/nothing")
    assert reply.status == 404
    assert "the path &#39;reports/nothing&#39; did not exist" in reply.text


@pytest.mark.mount
def test_browse_requests_without_cookie_or_secret_path_are_refused(served: Served) -> None:
    for path in ("/", "/style.css", "/at/2/", "/content/2/reports/report.txt", "/nothing"):
        for cookie in ("", "x=y", f"{served.cookie}x", served.cookie.replace("=", "=x")):
            assert served.ask(path, Cookie=cookie).status == 403
        assert served.raw(path).status == 403
    # The login token can be used only once.
    assert served.raw(f"/?token={served.token}", Cookie="").status == 403
    assert served.ask("/", **{"Sec-Fetch-Site": "same-site"}).status == 403


@pytest.mark.mount
@pytest.mark.parametrize("host", ["evil.example", "evil.example:{}", "127.0.0.1:1", "127.0.0.1"])
def test_browse_request_with_a_wrong_host_header_is_refused(served: Served, host: str) -> None:
    assert served.ask("/", Host=host.format(served.port)).status == 421
    assert served.ask("/", Host=f"localhost:{served.port}").status == 200


@pytest.mark.mount
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_browse_server_accepts_only_get_and_head_requests(served: Served, method: str) -> None:
    assert served.ask("/", method).status == 405
    head = served.ask(f"/content/{served.txg}/reports/report.txt", "HEAD")
    assert (head.status, head.content) == (200, b"")
    assert head.headers["Content-Length"] == str(len(SECOND))


@pytest.mark.mount
@pytest.mark.parametrize(
    ("path", "ancestors", "options"),
    [
        *((path, "'none'", "DENY") for path in ("/", "/at/2/reports", "/nothing", "/style.css")),
        *((path, "'self'", "SAMEORIGIN") for path in ("/since/2/reports", "/since/x/")),
    ],
)
def test_browse_replies_have_the_security_headers(
    served: Served, path: str, ancestors: str, options: str
) -> None:
    """Only the list of changes may be in a frame, and only in a frame of this server."""
    headers = served.ask(path).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.endswith(
        "; style-src 'self'; img-src 'self'; frame-src 'self'; form-action 'self';"
        f" frame-ancestors {ancestors}; base-uri 'none'"
    )
    assert headers["X-Frame-Options"] == options
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["ETag"] is None


@pytest.mark.mount
def test_browse_pages_load_nothing_from_other_hosts(served: Served) -> None:
    """Three pages are searched for URLs of other hosts, inline styles and inline scripts."""
    for path in ("/", f"/at/{served.txg}/reports/page.html", f"/space/{served.txg}/"):
        page = served.page(path)
        assert "http:" not in page
        assert "https:" not in page
        assert " style=" not in page
        assert page.count("<script") == page.count(f'<script src="{served.root}/plot.js" ')


class _Away:
    """A source of pages whose bucket fails from the beginning or never responds."""

    def __init__(self, age_s: float) -> None:
        self._began_s = trio.current_time()
        self._age_s = age_s
        self.place = SimpleNamespace(url="s3://away", state=Path("/cache/away"))
        self.reading = SimpleNamespace(options=S3Options(endpoint_url="http://host:9000"))

    @property
    def outage(self) -> Outage:
        """Return an outage of the bucket that began *age_s* seconds ago."""
        age_s = trio.current_time() - self._began_s - self._age_s
        return Outage(max(age_s, 0.0), "refused", 0.0)

    async def bounds(self) -> Any:
        """Wait forever for a response from the bucket."""
        await trio.sleep_forever()

    async def link(self, _txg: Txg) -> Any:
        """Wait forever for the chain position of a txg."""
        await self.bounds()


async def _made(site: Site, request: HttpRequest) -> Reply:
    """Request a page repeatedly, as a browser does, until the page is made."""
    while (reply := await site.answer(request)).status == http_server.ACCEPTED:
        assert b'<meta http-equiv="refresh" content="0">' in reply.content
    return reply


class _Browser(NamedTuple):
    """A site, and a browser that has exchanged the token for a cookie."""

    site: Site
    root: str
    headers: dict[bytes, bytes]

    def request(self, path: str = "") -> HttpRequest:
        """Return a request of the browser for a page."""
        return HttpRequest("GET", f"{self.root}{path}".encode(), self.headers)


async def _entered(source: _Away, nursery: trio.Nursery) -> _Browser:
    """Return the site of a source, and a browser that has logged in to the site."""
    access = Access(Address("127.0.0.1", 8080), new_path())
    render = templates.load(root=access.root, place="s3://away", target="x", has_mount=False)
    site = Site(cast("Source", source), access, render, PendingPages(nursery))
    host = {b"host": b"127.0.0.1:8080"}
    token = access.url.partition("8080")[2].encode()
    reply = await site.answer(HttpRequest("GET", token, host))
    cookie = reply.headers["set-cookie"].partition(";")[0].encode()
    return _Browser(site, access.root, {**host, b"accept": b"text/html", b"cookie": cookie})


@pytest.mark.parametrize("fails_after_s", [0.0, 20.0])
async def test_browser_gets_a_wait_page_while_the_bucket_is_unreachable(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery, fails_after_s: float
) -> None:
    browser = await _entered(_Away(fails_after_s), nursery)
    began_s = trio.current_time()
    first = await browser.site.answer(browser.request())
    assert trio.current_time() - began_s == pytest.approx(BROWSE_ANSWER_S)
    assert first.status == http_server.ACCEPTED
    assert b"Please wait" in first.content
    reply = await _made(browser.site, browser.request())
    waited_s = trio.current_time() - began_s
    assert reply.status == 502
    assert b"s3://away has not responded for" in reply.content
    assert BROWSE_OUTAGE_S_MAX <= waited_s - fails_after_s <= BROWSE_OUTAGE_S_MAX + 2


async def test_wait_page_and_error_fit_into_the_frame_of_the_list_beside_a_folder(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    browser = await _entered(_Away(0.0), nursery)
    request = browser.request("/since/2/")
    first, last = await browser.site.answer(request), await _made(browser.site, request)
    assert (first.status, last.status) == (http_server.ACCEPTED, http_server.STORE)
    for reply in (first, last):
        assert b'<base target="_top">' in reply.content
        assert b"<nav" not in reply.content
        assert "frame-ancestors 'self'" in reply.headers["content-security-policy"]


async def test_client_that_is_not_a_browser_waits_until_a_slow_page_is_ready(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    browser = await _entered(_Away(0.0), nursery)
    client = browser._replace(headers={**browser.headers, b"accept": b"*/*"})
    reply = await client.site.answer(client.request())
    assert reply.status == 502


class _Failing(_Away):
    """A source of pages for which several requests to the bucket fail at the same time."""

    @override
    async def bounds(self) -> Any:
        """Raise an error in two tasks at the same time."""

        async def fail() -> None:
            await trio.lowlevel.checkpoint()
            raise StoreUnavailableError("log/1", 8, 60.0, "SlowDown")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            nursery.start_soon(fail)


async def test_page_reports_several_failed_requests_as_one_error(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    browser = await _entered(_Failing(0.0), nursery)
    reply = await _made(browser.site, browser.request())
    assert reply.status == 502
    assert b"The bucket cannot be read" in reply.content
    assert b"SlowDown" in reply.content
    assert not caplog.records


class _Damaged(_Away):
    """A source of pages whose bucket has damaged changelogs."""

    @override
    async def bounds(self) -> Any:
        """Raise an error whose message suggests a command without the URL of the bucket."""
        raise CorruptionError("log/1 is damaged: s3fs-meta fsck -y repairs as much as possible")


async def test_command_suggested_on_an_error_page_includes_the_url_and_the_s3_options(
    nursery: trio.Nursery,
) -> None:
    browser = await _entered(_Damaged(0.0), nursery)
    reply = await _made(browser.site, browser.request())
    options = b"--endpoint-url http://host:9000 --cachedir /cache"
    assert b"s3fs-meta fsck -y " + options + b" s3://away repairs" in reply.content
