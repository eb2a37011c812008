"""Tests of the accessibility of the browse pages by keyboard and screen reader, with axe-core."""

from importlib import resources
from importlib.util import find_spec

import pytest

from tests.browse.chromium import Browser
from tests.browse.serving import Served
from tests.conftest import REQUIRED
from tests.sampled import sampled

pytestmark = pytest.mark.mount

PAGES = (
    "/",
    "/at/{}/reports",
    "/at/{}/hostile",
    "/at/2/",
    "/since/2/reports",
    "/at/{}/reports/report.txt",
    "/at/{}/reports/picture.png",
    "/versions/reports/report.txt",
    "/compare/reports/report.txt?old=2&new={}",
    "/changes/2/reports",
    "/space/{}/?since=2",
    "/find/{}/reports?name=re",
    "/nothing",
)
FINDINGS = """
axe.run().then(found => found.violations
  .filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => one.id + ": " + one.nodes.map(node => node.html).join(" ")))
"""


def findings(browser: Browser) -> list[str]:
    """Return the serious and critical accessibility violations on the page."""
    if find_spec("axe_core_python") is None and "chromium" not in REQUIRED:
        pytest.skip("axe-core-python is not installed (requirements/dev.txt)")
    browser.run(resources.files("axe_core_python").joinpath("axe.min.js").read_text())
    found = browser.run(FINDINGS)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(("width", "scheme"), sampled([(360, "dark"), (1200, "light")], 2))
def test_browse_pages_have_no_serious_accessibility_violation(
    served: Served, browser: Browser, path: str, width: int, scheme: str
) -> None:
    browser.look(width, 800, scheme)
    browser.go(served.url(path.format(served.txg)))
    assert findings(browser) == []


def test_accessibility_check_finds_a_form_field_without_a_label(
    served: Served, browser: Browser
) -> None:
    browser.go(served.url("/"))
    browser.run("document.querySelector('label').remove()")
    assert "label" in [one.partition(":")[0] for one in findings(browser)]
