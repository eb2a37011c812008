"""Tests that the targets of links between documents exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("contrib/**/*.md")])

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _links(page: Path) -> list[str]:
    found = _LINK.findall(_CODE.sub("", page.read_text()))
    return [link for link in found if "://" not in link and not link.startswith("mailto:")]


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes for the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_links_in_documents_point_to_existing_targets(page: Path) -> None:
    """The target of each relative link exists: the file, and the heading in the file."""
    broken = []
    for link in _links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)

    assert broken == []


def test_every_document_is_linked_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in _links(index)}

    assert {page for page in (ROOT / "docs").rglob("*.md") if page != index} - named == set()
