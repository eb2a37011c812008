"""No object of C code keeps a memoryview beyond a call.

CPython before the fix of its issue 77894 (3.10, 3.11, 3.12.1) crashes when the garbage collector
clears a memoryview of which an object still holds the buffer. ``iter_unpack`` and ``finditer`` return
such objects, so both get an immutable copy; what holds a buffer only during a call is harmless.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
KEEPS_ITS_BUFFER: Final = {"iter_unpack", "finditer", "from_buffer"}
SOURCES = sorted((ROOT / "s3fs_meta").rglob("*.py"))


def _kept_buffers(source: str) -> Iterator[int]:
    """Yield the lines where something else than ``bytes(…)`` is handed to what keeps a buffer."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in KEEPS_ITS_BUFFER
            and not all(_is_copy(argument) for argument in node.args[-1:])
        ):
            yield node.lineno


def _is_copy(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bytes"
    )


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_iterators_over_buffers_get_a_copy(path: Path) -> None:
    """The copy of an exact ``bytes`` object costs nothing."""
    assert list(_kept_buffers(path.read_text())) == []


def test_memoryview_is_found() -> None:
    """The search finds the call that crashed."""
    assert list(_kept_buffers("rows = ONE.iter_unpack(memoryview(data)[4:end])")) == [1]
    assert list(_kept_buffers("rows = ONE.iter_unpack(bytes(view[4:end]))")) == []
