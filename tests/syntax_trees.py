"""Syntax trees of the sources, parsed only once in each test process."""

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

_Node = TypeVar("_Node", bound=ast.AST)


@contextmanager
def _exempt_from_collections() -> Iterator[None]:
    """Exempt new objects from garbage collection, which would take most of the parsing time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    with _exempt_from_collections():
        return ast.parse(path.read_text())


@cache
def _by_type(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = {}
    tree = tree_of(path)
    with _exempt_from_collections():
        for node in ast.walk(tree):
            found.setdefault(type(node), []).append(node)
    return found


def nodes_of(path: Path, kind: type[_Node]) -> list[_Node]:
    """Return the syntax tree nodes of one type in a file."""
    return [node for node in _by_type(path).get(kind, ()) if isinstance(node, kind)]
