"""Files and functions stay readable: the budgets of docs/design/testing.md, measured."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
TEST_FUNCTION_LINES_MAX = 40
BANNED_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}

SOURCES = sorted((ROOT / "s3fs_meta").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _long_functions(path: Path, lines_max: int) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > lines_max:
                found.append(f"{_relative(path)}:{node.lineno} {node.name}: {lines} lines")
    return found


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=_relative)
def test_file_is_at_most_600_lines(path: Path) -> None:
    """A file that grows past the limit is split by noun."""
    assert len(path.read_text().splitlines()) <= FILE_LINES_MAX


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_no_function_is_over_70_lines(path: Path) -> None:
    """A function fits on a screen."""
    assert _long_functions(path, FUNCTION_LINES_MAX) == []


@pytest.mark.parametrize("path", TESTS, ids=_relative)
def test_no_test_function_is_over_40_lines(path: Path) -> None:
    """A test shows its steps at a glance."""
    assert _long_functions(path, TEST_FUNCTION_LINES_MAX) == []


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    """Every module is named after what it owns."""
    assert [_relative(path) for path in SOURCES + TESTS if path.name in BANNED_NAMES] == []


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.name == "__init__.py"], ids=_relative
)
def test_package_init_holds_only_a_docstring(path: Path) -> None:
    """Importing a package imports nothing else."""
    body = ast.parse(path.read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)
