"""Tests that each invariant in docs/design/invariants.md is maintained and tested."""

import ast
import importlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from s3fs_meta.check.context import Invariant
from s3fs_meta.check.invariants import INVARIANTS
from s3fs_meta.check.report import Severity

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "design" / "invariants.md"

_ROW = re.compile(
    r"^\| (I\d+) \| (.+?) \| (.+?) \| `([\w.]+)` \| `([\w.]+)` \| `([\w/]+)\.(\w+)` \|$",
    re.MULTILINE,
)


class Described(NamedTuple):
    """A row of the table in docs/design/invariants.md."""

    name: str
    title: str
    repair: str
    kept_by: str
    checked_by: str
    test_module: str
    test: str


DESCRIBED = [Described(*groups) for groups in _ROW.findall(PAGE.read_text())]
BY_NAME = {one.name: one for one in INVARIANTS}


def _name(described: Described) -> str:
    return described.name


def test_invariants_page_lists_every_invariant_in_order() -> None:
    """The invariants page lists every invariant in order and with its title."""
    assert [(row.name, row.title) for row in DESCRIBED] == [
        (one.name, one.title) for one in INVARIANTS
    ]


@pytest.mark.parametrize("described", DESCRIBED, ids=_name)
def test_documented_code_that_maintains_an_invariant_exists(described: Described) -> None:
    """The code that a row of the invariants page refers to exists in s3fs_meta."""
    parts = described.kept_by.split(".")
    path = next(
        parts[:length]
        for length in range(len(parts), 0, -1)
        if ROOT.joinpath("s3fs_meta", *parts[:length]).with_suffix(".py").exists()
    )
    found: object = importlib.import_module(".".join(["s3fs_meta", *path]))
    for part in parts[len(path) :]:
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.parametrize("described", DESCRIBED, ids=_name)
def test_each_invariant_is_checked_by_the_module_that_its_row_names(described: Described) -> None:
    """The module that an invariant's row names defines the invariant's query and repair."""
    module = importlib.import_module(f"s3fs_meta.check.{described.checked_by}")
    defined: set[Invariant] = set()
    for value in vars(module).values():
        if isinstance(value, tuple):
            defined.update(one for one in value if isinstance(one, Invariant))
    assert BY_NAME[described.name] in defined


@pytest.mark.parametrize("described", DESCRIBED, ids=_name)
def test_docstring_of_an_invariant_test_contains_the_invariant_number(described: Described) -> None:
    tree = ast.parse((ROOT / "tests" / "check" / f"{described.test_module}.py").read_text())
    tests = {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert re.search(rf"\b{described.name}\b", tests[described.test])


@pytest.mark.parametrize("described", DESCRIBED, ids=_name)
def test_invariants_page_shows_the_fsck_option_of_each_repair(described: Described) -> None:
    """Each row shows fsck -p for a safe repair, -y for any other repair, or no option."""
    one = BY_NAME[described.name]
    assert described.repair.startswith("leftover") == (one.severity is Severity.LEFTOVER)
    if one.repair is None:
        assert "-p" not in described.repair
        assert "-y" not in described.repair
    else:
        assert ("-p" if one.safe else "-y") in described.repair
