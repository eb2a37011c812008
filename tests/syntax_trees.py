"""Syntax trees of the sources, parsed only once in each test process."""

import ast
from functools import cache
from pathlib import Path
from typing import TypeVar

_Node = TypeVar("_Node", bound=ast.AST)


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def _by_type(path: Path) -> dict[type[ast.AST], list[ast.AST]]:
    found: dict[type[ast.AST], list[ast.AST]] = {}
    for node in ast.walk(tree_of(path)):
        found.setdefault(type(node), []).append(node)
    return found


def nodes_of(path: Path, kind: type[_Node]) -> list[_Node]:
    """Return the syntax tree nodes of one type in a file."""
    return [node for node in _by_type(path).get(kind, ()) if isinstance(node, kind)]
