"""Tests of the browse pages in a real browser: what the browser loads, runs and shows."""

import os
import re
import stat
from pathlib import Path

import pytest

from tests.browse import chromium
from tests.browse.chromium import Browser
from tests.browse.conftest import require_chromium
from tests.browse.serving import Served, printed_url
from tests.polling import wait_until
from tests.sampled import sampled

pytestmark = pytest.mark.mount

PAGES = (
    "/",
    "/at/{}/reports",
    "/at/{}/hostile",
    "/at/2/reports",
    "/at/{}/reports/report.txt",
    "/at/{}/reports/page.html",
    "/versions/reports/report.txt",
    "/compare/reports/report.txt?old=2&new={}",
    "/changes/2/",
    "/space/{}/?since=2",
    "/space/{}/hostile",
    "/find/{}/?name=e",
)

FRAME = "document.querySelector('iframe').contentDocument"


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("width", sampled([360, 1200, 2400], 3))
def test_browse_page_is_styled_and_fits_the_window_width(
    served: Served, browser: Browser, path: str, width: int
) -> None:
    browser.messages.clear()
    browser.look(width, 800, "light")
    browser.go(served.url(path.format(served.txg)))
    assert browser.run("document.querySelector('h1') !== null")
    assert browser.run("getComputedStyle(document.body).maxWidth") == "1216px"
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    # The browser reports no policy violations and no missing resources.
    assert browser.messages == []


def test_dark_and_light_colour_schemes_use_different_colours(
    served: Served, browser: Browser
) -> None:
    colours = set()
    for scheme in ("light", "dark"):
        browser.look(1200, 800, scheme)
        browser.go(served.url("/"))
        colours.add(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert len(colours) == 2


def test_browser_loads_the_preview_picture_of_a_file(served: Served, browser: Browser) -> None:
    browser.go(served.url(f"/at/{served.txg}/reports/picture.png"))
    assert browser.run("document.querySelector('img').naturalWidth") == 160


def test_browser_does_not_run_scripts_injected_into_a_page(served: Served) -> None:
    """The browser runs no script inserted by a faulty template, and runs no file as a script."""
    require_chromium()
    file = f"{served.root}/content/{served.txg}/reports/report.txt"
    with chromium.started() as browser:
        browser.log_in(served)
        browser.go(served.url("/"))
        browser.run("document.body.innerHTML += '<img src=x onerror=\"document.title=1\">'")
        browser.run(
            "var one = document.createElement('script'); one.text = 'document.title = 1';"
            "document.body.append(one)"
        )
        failed = browser.run(
            "new Promise(done => { var one = document.createElement('script');"
            f" one.onload = () => done('run'); one.onerror = () => done('refused'); one.src = '{file}';"
            " document.body.append(one) })"
        )
        assert failed == "refused"
        assert browser.run("document.title") != "1"
        assert "Content Security Policy" in "".join(browser.messages)


def test_two_versions_of_a_file_can_be_compared_without_scripts(
    served: Served, browser: Browser
) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.go(served.url("/versions/reports/report.txt"))
        browser.run("document.querySelector('form').requestSubmit()")
        browser.wait_for_load()
        assert "Two versions" in browser.run("document.querySelector('h1').textContent")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_links_to_files_with_hostile_names_work(served: Served, browser: Browser) -> None:
    browser.go(served.url(f"/at/{served.txg}/hostile"))
    links = browser.run("[...document.querySelectorAll('tbody a')].map(a => [a.href, a.text])")
    assert len(links) > 5
    for link, text in links:
        browser.go(link)
        assert browser.run("document.querySelector('h1').textContent") == text


@pytest.mark.parametrize(("width", "is_beside"), [(360, False), (1200, True)])
def test_frame_beside_a_past_folder_shows_later_changes_of_the_folder(
    served: Served, browser: Browser, width: int, is_beside: bool
) -> None:
    """The list of changes is beside the folder in a wide window, and below it on a phone."""
    browser.messages.clear()
    browser.look(width, 2000, "light")
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.go(served.url("/at/2/reports"))
        wait_until(
            lambda: browser.run(f"{FRAME} !== null && {FRAME}.querySelector('li') !== null"),
            "the frame shows no change",
        )
        assert "old name" in browser.run(f"{FRAME}.body.textContent")
        tree, frame = (
            browser.run(f"document.querySelector('{one}').getBoundingClientRect().toJSON()")
            for one in (".beside table", "iframe")
        )
        assert (tree["right"] <= frame["left"]) == is_beside
        assert (tree["bottom"] <= frame["top"]) != is_beside
        assert browser.run(f"{FRAME}.documentElement.scrollWidth <= {FRAME}.body.offsetWidth")
        browser.run(f"{FRAME}.querySelector('li a').click()")
        browser.wait_for_load()
        assert browser.run("window === window.top && document.querySelector('h1') !== null")
        assert browser.run("location.href") == served.url(f"/at/{served.txg}/latter")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.messages == []


# --- plot of the time line ------------------------------------------------------------------------


def _bar(browser: Browser, index: int) -> dict[str, float]:
    """Return the screen position of the centre of a bar."""
    found = browser.run(
        f"(box => ({{x: box.x + box.width / 2, y: box.y + box.height / 2}}))"
        f"([...document.querySelectorAll('.bar')].at({index}).getBoundingClientRect())"
    )
    assert isinstance(found, dict)
    return found


def _mouse(browser: Browser, kind: str, x: float, y: float) -> None:
    browser.call(
        "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1
    )


def _press(browser: Browser, key: str, text: str = "") -> None:
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, text=text * (kind == "keyDown"))


def test_dragging_over_the_time_line_zooms_into_the_selected_range(
    served: Served, browser: Browser
) -> None:
    browser.look(1200, 800, "light")
    browser.go(served.url("/"))
    first, second = _bar(browser, -2), _bar(browser, -1)
    _mouse(browser, "mousePressed", first["x"] - 4, first["y"])
    _mouse(browser, "mouseMoved", second["x"], second["y"])
    assert float(browser.run("document.querySelector('.band').getAttribute('width')")) > 0
    loads = browser.loads
    _mouse(browser, "mouseReleased", second["x"] + 4, second["y"])
    browser.wait_for_load(loads)
    found = re.search(r"\?first=(\d+)&last=(\d+)$", browser.run("location.href"))
    assert found is not None
    assert int(found[2]) == served.txg
    assert 0 < int(found[1]) < served.txg
    assert "show everything" in browser.run("document.body.textContent")


def test_click_on_a_bar_of_the_time_line_selects_its_txg(served: Served, browser: Browser) -> None:
    browser.look(1200, 800, "light")
    browser.go(served.url("/"))
    bar = _bar(browser, -1)
    for kind in ("mousePressed", "mouseReleased"):
        _mouse(browser, kind, bar["x"], bar["y"])
    assert f"txg {served.txg}, " in browser.run("document.getElementById('plot-now').textContent")
    link = browser.run("document.querySelector('#plot-now a').href")
    assert link == served.url(f"/at/{served.txg}/")


def test_time_line_can_be_used_with_the_keyboard(served: Served, browser: Browser) -> None:
    browser.go(served.url("/"))
    browser.run("document.getElementById('plot').focus()")
    said = "document.getElementById('plot-now').textContent"
    _press(browser, "Home")
    first = browser.run(said)
    _press(browser, "ArrowRight")
    second = browser.run(said)
    _press(browser, "ArrowLeft")
    assert browser.run(said) == first != second
    _press(browser, "End")
    loads = browser.loads
    _press(browser, "Enter", "\r")
    browser.wait_for_load(loads)
    assert browser.run("location.href") == served.url(f"/at/{served.txg}/")
    browser.go(served.url("/"))
    browser.run("document.getElementById('plot').focus()")
    _press(browser, "End")
    loads = browser.loads
    _press(browser, "+", "+")
    browser.wait_for_load(loads)
    assert browser.run("location.href").endswith(f"?first={served.txg}&last={served.txg}")


def test_time_line_page_shows_a_kept_point_in_its_plot_and_in_its_list(
    served: Served, browser: Browser
) -> None:
    """A keyboard user can select a kept point in the plot and in the list."""
    browser.look(1200, 800, "light")
    browser.go(served.url("/"))
    mark = browser.run(
        "(box => ({x: box.x + box.width / 2, y: box.y + 4, width: box.width, height: box.height}))"
        "(document.querySelector('path.kept').getBoundingClientRect())"
    )
    assert mark["width"] > 4
    assert mark["height"] > 100
    assert "before-the-change" in browser.run(
        "document.querySelector('path.kept title').textContent"
    )
    browser.run("document.getElementById('plot').focus()")
    for key in ("Home", "ArrowRight", "ArrowRight"):
        _press(browser, key)
    said = browser.run("document.querySelector('#plot-now[role=status]').textContent")
    assert "kept as before-the-change" in said
    browser.run("document.querySelector('details summary + .wide a').focus()")
    assert browser.run("document.activeElement.textContent") == "before-the-change"
    loads = browser.loads
    _press(browser, "Enter", "\r")
    browser.wait_for_load(loads)
    assert browser.run("location.href") == served.url("/at/2/")


@pytest.mark.parametrize("width", [480, 800])
def test_time_line_table_with_a_kept_point_fits_into_the_window(
    served: Served, browser: Browser, width: int
) -> None:
    """The last column, which has the link to the changes, is visible without scrolling."""
    browser.look(width, 800, "light")
    browser.go(served.url("/"))
    table = "[...document.querySelectorAll('.wide')].find(one => one.querySelector('.plot'))"
    assert "kept as before-the-change" in browser.run(f"{table}.textContent")
    assert browser.run(f"{table}.scrollWidth <= {table}.clientWidth")


def test_time_line_without_scripts_has_links_to_other_time_ranges(
    served: Served, browser: Browser
) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.go(served.url(f"/?first=2&last={served.txg - 1}"))
        assert browser.run("document.getElementById('plot-help').hidden")
        labels = browser.run("[...document.querySelectorAll('[data-move]')].map(a => a.text)")
        assert {"Earlier", "Later", "Wider"} <= set(labels)
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


# --- how the browser opens pages ------------------------------------------------------------------


def test_login_token_is_passed_to_the_browser_in_a_private_file(
    served: Served, tmp_path: Path
) -> None:
    """Any user can read a browser's arguments, so the arguments do not contain the token."""
    require_chromium()
    given = tmp_path / "arguments"
    program = tmp_path / "opener"
    program.write_text(f'#!/bin/sh\nprintf %s "$*" >{given}.new && mv {given}.new {given}\n')
    program.chmod(0o755)
    environment = {**os.environ, "BROWSER": str(program), "DISPLAY": ""}
    bucket = served.tree.parent / "bucket"
    words = ["--open", "--cachedir", str(tmp_path / "state"), f"local://{bucket}"]
    with printed_url(words, environment) as url:
        wait_until(given.exists, "the browser was not opened in time")
        address = given.read_text()
        assert address.startswith("file:///")
        assert "token" not in address
        page = Path(address.removeprefix("file://"))
        assert url in page.read_text()
        assert stat.S_IMODE(page.parent.stat().st_mode) == 0o700
        with chromium.started() as browser:
            browser.call("Page.navigate", url=address)
            wait_until(
                lambda: re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{20,}/", browser.address),
                "the browser did not open the page",
            )
            browser.wait_for_text("Retained")
    assert not page.exists()
