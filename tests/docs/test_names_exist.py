"""Tests that names of tests, modules and functions in the documents exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
_CODE = re.compile(r"`([^`\n]*)`")
_FILE = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|sql|ini|fio))(?:::\w+)?`")


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def _tests(module: Path) -> frozenset[str]:
    """Return the names of a module's tests, or the names of the store contract's test cases."""
    return frozenset(
        node.name
        for node in ast.parse(module.read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and (
            node.name.startswith("test_")
            or any(isinstance(one, ast.Name) and one.id == "case" for one in node.decorator_list)
        )
    )


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_every_test_named_in_a_document_exists(page: Path) -> None:
    missing = [
        f"{module}::{name}"
        for module, name in _TEST.findall(page.read_text())
        if not (ROOT / module).exists() or name not in _tests(ROOT / module)
    ]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_documents_refer_to_tests_by_path_and_name(page: Path) -> None:
    """Documents refer to a test as PATH::NAME, because only this form is checked."""
    code = _CODE.findall(page.read_text())
    named = [one for one in code if "::" in one or one.startswith(("test_", "tests/"))]

    assert [
        one
        for one in named
        if not _TEST.fullmatch(f"`{one}`") and "<" not in one and not (ROOT / one).exists()
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=_relative)
def test_every_file_named_in_a_document_exists(page: Path) -> None:
    """Each path in a document exists in the repository or in the package."""
    missing = [
        name
        for name in set(_FILE.findall(page.read_text()))
        if not any((folder / name).exists() for folder in (ROOT, ROOT / "s3fs_meta"))
    ]

    assert missing == []


def test_every_claim_of_the_security_page_refers_to_a_test() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    statements = [row for row in rows if not row.startswith(("| --- ", "| statement "))]

    assert [row for row in statements if not _TEST.search(row)] == []
    assert len(statements) > 10
