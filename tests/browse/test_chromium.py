"""The pages in a real browser: what it loads, runs and shows."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.browse import chromium
from tests.browse.chromium import Browser
from tests.browse.conftest import Served
from tests.conftest import REQUIRED

pytestmark = pytest.mark.mount


@pytest.fixture(scope="module")
def browser(served: Served) -> Iterator[Browser]:
    """Return a browser that has the cookie, for all tests that cause no message."""
    with _logged_in(served) as found:
        yield found


@contextmanager
def _logged_in(served: Served) -> Iterator[Browser]:
    """Run a browser that has the cookie; skip the test without one, unless it is required."""
    if chromium.PROGRAM is None and "chromium" not in REQUIRED:
        pytest.skip("chromium is not installed (Debian package chromium)")
    name, _, value = served.cookie.partition("=")
    with chromium.started() as found:
        found.call("Network.setCookie", name=name, value=value, url=_url(served, "/"))
        yield found


def _url(served: Served, path: str) -> str:
    return f"http://127.0.0.1:{served.port}{path}"


PAGES = (
    "/",
    "/at/{}/reports",
    "/at/{}/hostile",
    "/at/{}/reports/report.txt",
    "/at/{}/reports/page.html",
    "/versions/reports/report.txt",
    "/compare/reports/report.txt?old=2&new={}",
    "/changes/2/",
)


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("width", [360, 1200, 2400])
def test_page_is_styled_and_not_wider_than_the_window(
    served: Served, browser: Browser, path: str, width: int
) -> None:
    browser.messages.clear()
    browser.look(width, 800, "light")
    browser.go(_url(served, path.format(served.txg)))
    assert browser.run("document.querySelector('h1') !== null")
    assert browser.run("getComputedStyle(document.body).maxWidth") == "1216px"
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.messages == []  # no violation of the policy, no script, no missing resource


def test_dark_and_light_have_other_colours(served: Served, browser: Browser) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        browser.look(1200, 800, scheme)
        browser.go(_url(served, "/"))
        colours.add(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


def test_picture_is_loaded(served: Served, browser: Browser) -> None:
    browser.go(_url(served, f"/at/{served.txg}/reports/picture.png"))
    assert browser.run("document.querySelector('img').naturalWidth") == 160


def test_scripts_in_a_page_are_refused(served: Served) -> None:
    """An element that a mistake in a template would bring is not run."""
    with _logged_in(served) as browser:
        browser.go(_url(served, "/"))
        browser.run("document.body.innerHTML += '<img src=x onerror=\"document.title=1\">'")
        browser.run(
            "var one = document.createElement('script'); one.text = 'document.title = 1';"
            "document.body.append(one)"
        )
        assert browser.run("document.title") != "1"
        assert "Content Security Policy" in "".join(browser.messages)


def test_form_and_links_work_without_scripts(served: Served, browser: Browser) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.go(_url(served, "/versions/reports/report.txt"))
        browser.run("document.querySelector('form').requestSubmit()")
        browser.wait_for_load()
        assert "Two versions" in browser.run("document.querySelector('h1').textContent")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_links_of_hostile_names_lead_to_their_files(served: Served, browser: Browser) -> None:
    browser.go(_url(served, f"/at/{served.txg}/hostile"))
    links = browser.run("[...document.querySelectorAll('tbody a')].map(a => [a.href, a.text])")
    assert len(links) > 5
    for link, text in links:
        browser.go(link)
        assert browser.run("document.querySelector('h1').textContent") == text
