"""Imports point down, and a library has one door: setup.cfg's contracts, read from the sources.

import-linter checks the same (``make layers``); this test needs no tool and says it at once.
"""

import ast
import configparser
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "s3fs_meta"
DOORS: Final = {
    "pyfuse3": "fuse",
    "apsw": "meta",
    "boto3": "objects",
    "botocore": "objects",
    "typer": "cli",
    "rich": "cli",
}
# Only these may wait: a library of tasks belongs to the ranks that have tasks.
TRIO_RANKS: Final = {"objects", "cache", "sync", "fs", "check", "fuse", "control", "cli", "testing"}


def _layers() -> list[str]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup["importlinter:contract:layers"]["layers"].strip().splitlines()


def _ranks() -> dict[str, int]:
    """Return the rank of each folder or top-level module, 0 at the bottom."""
    ranks = {}
    for rank, line in enumerate(reversed(_layers())):
        for name in line.replace("|", ":").split(":"):
            ranks[name.strip().removeprefix(f"{PACKAGE}.")] = rank
    return ranks


def _neighbours() -> set[frozenset[str]]:
    """Return the pairs of one rank that may know each other."""
    pairs = set()
    for line in _layers():
        names = [name.strip().removeprefix(f"{PACKAGE}.") for name in line.split(":")]
        pairs |= {frozenset({one, other}) for one in names for other in names}
    return pairs


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _owner(path: Path) -> str:
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return parts[0]


SOURCES = [
    path
    for path in sorted((ROOT / PACKAGE).rglob("*.py"))
    if path.parent != ROOT / PACKAGE or path.stem not in {"__init__", "__main__"}
]


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_imports_point_down(path: Path) -> None:
    """A module imports from lower ranks, its own folder, and neighbours that are declared."""
    ranks, owner, neighbours = _ranks(), _owner(path), _neighbours()
    ours = {name.split(".")[1] for name in _imports(path) if name.startswith(f"{PACKAGE}.")}

    assert owner in ranks, f"{owner} has no rank in setup.cfg"
    wrong = [
        other
        for other in ours - {owner}
        if ranks[other] > ranks[owner]
        or (ranks[other] == ranks[owner] and frozenset({owner, other}) not in neighbours)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", SOURCES, ids=_relative)
def test_library_has_one_door(path: Path) -> None:
    """Only its own folder knows a library's names and exceptions."""
    libraries = {name.split(".")[0] for name in _imports(path)}
    owner = _owner(path)

    assert [one for one in libraries & DOORS.keys() if owner not in {DOORS[one], "testing"}] == []
    assert "trio" not in libraries or owner in TRIO_RANKS


def test_no_import_cycle() -> None:
    """Not even inside a folder."""
    graph = {_module(path): set(_imports(path)) for path in SOURCES}
    finished: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above, name))
        if name not in finished:
            for other in graph[name] & graph.keys() - {name}:
                visit(other, (*above, name))
            finished.add(name)

    for name in graph:
        visit(name, ())


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)
