"""Tests of the limits for sources in docs/design/testing.md, and of rules without a linter.

Each test lists every violation. The tool import-linter checks imports, with the contracts in
setup.cfg.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from tests.syntax_trees import nodes_of, tree_of

ROOT = Path(__file__).parents[2]
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
TEST_FUNCTION_LINES_MAX = 40
GLOSSARY_LINES_MIN, GLOSSARY_LINES_MAX = 10, 25
FOLDER_MODULES_MIN, FOLDER_MODULES_MAX = 3, 15
# The only folder that may have more than FOLDER_MODULES_MAX modules.
ONE_MODULE_PER_COMMAND: Final = "s3fs_meta/cli"
BANNED_NAMES = {"utils.py", "helpers.py", "common.py", "misc.py"}
# The result of these functions refers to their argument, which must be an immutable copy.
# With a memoryview, CPython 3.10, 3.11 or 3.12.1 may crash in a garbage collection (issue 77894).
# Python may crash if the collector clears a memoryview while an object still uses its buffer.
# A function that uses a buffer only until it returns is allowed to take a memoryview.
KEEPS_ITS_BUFFER: Final = {"iter_unpack", "finditer", "from_buffer"}
KEPT_MAPPINGS: Final = {"s3fs_meta/memory_allocator.py"}  # The argument is an mmap object.

SOURCES = sorted((ROOT / "s3fs_meta").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TOOLS = sorted((ROOT / "contrib").rglob("*.py"))
# No test imports these modules; each entry gives a reason.
TESTED_BY_USE: Final = {
    "__main__": "one line; every test that runs the program in a process goes through it",
}
# Any module may assign these attributes, because libraries define the objects.
# Examples of such objects are replies of pyfuse3, trio scopes, apsw sessions and exceptions.
# The pattern also matches thread-local values and a module that the request loop replaces.
FOREIGN: Final = re.compile(
    r"st_|f_|(entry|attr)_timeout$|generation$|deadline$|shield$|enabled$|__|is_handler$"
    r"|(de)?compressors?$|trio$|argtypes$|atexit$"
)
# Any module may change these records, such as the totals of the open commit group.
# Only one task changes each record, and no other code is notified.
EDITED_RECORDS: Final = re.compile(
    r"(db\.|^)counters\.|^then\.|^(verdict|future|_note_closed\(.*\))\.|evidence\.surveyed$"
    r"|^exam\.block_hash$|^record\.|^exc\.changed_nothing$|^points\.notices$|^chooser\.left$"
)

_Node = TypeVar("_Node", bound=ast.AST)


def _relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _nodes(code: str, kind: type[_Node]) -> list[_Node]:
    """Return the syntax tree nodes of one type in a piece of code."""
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, kind)]


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [*nodes_of(path, ast.FunctionDef), *nodes_of(path, ast.AsyncFunctionDef)]


def _long_functions(paths: Iterable[Path], lines_max: int) -> list[str]:
    return [
        f"{_relative(path)}:{node.lineno} {node.name}: {lines} lines"
        for path in paths
        for node in _functions(path)
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > lines_max
    ]


def _imported(path: Path) -> Iterator[str]:
    for whole in nodes_of(path, ast.Import):
        yield from (alias.name for alias in whole.names)
    for part in nodes_of(path, ast.ImportFrom):
        yield part.module or ""
        yield from (f"{part.module}.{alias.name}" for alias in part.names)


def _kept_buffers(calls: Iterable[ast.Call]) -> Iterator[int]:
    """Yield the lines of calls of KEEPS_ITS_BUFFER whose last argument is not ``bytes(…)``."""
    for node in calls:
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in KEEPS_ITS_BUFFER
            and not all(_is_copy(argument) for argument in node.args[-1:])
        ):
            yield node.lineno


def _is_copy(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "bytes"
    )


def _declared(annotated: Iterable[ast.AnnAssign], attributes: Iterable[ast.Attribute]) -> set[str]:
    """Return the names of attributes that a module's classes declare."""
    return {node.target.id for node in annotated if isinstance(node.target, ast.Name)} | {
        node.attr for node in attributes if _is_stored(node) and _is_of(node, "self")
    }


def _is_stored(node: ast.Attribute) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _is_of(node: ast.Attribute, *names: str) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in names


def _late_wiring(
    annotated: Iterable[ast.AnnAssign], attributes: Iterable[ast.Attribute]
) -> Iterator[str]:
    """Yield assignments to attributes that no class of the module declares."""
    declared = _declared(annotated, attributes)
    for node in attributes:
        if _is_stored(node):
            target = ast.unparse(node)
            if (
                not _is_of(node, "self", "cls", "sys")
                and node.attr not in declared
                and not FOREIGN.match(node.attr)
                and not EDITED_RECORDS.search(target)
            ):
                yield f"{node.lineno} {target}"


def test_only_methods_of_an_object_assign_its_attributes() -> None:
    assert [
        f"{_relative(path)}:{found}"
        for path in SOURCES
        for found in _late_wiring(nodes_of(path, ast.AnnAssign), nodes_of(path, ast.Attribute))
    ] == []


def test_source_check_finds_assignments_to_attributes_of_other_objects() -> None:
    """The source check reports assigned callbacks, but a module may change its own records."""
    for bad in ("x.on_y = f", "self._uploader.cut = cut", "a, self.b.c = 1, 2", "del x.link"):
        assert list(_late_wiring([], _nodes(bad, ast.Attribute)))
    own = "class Fetch:\n  def __init__(self): self.error = None\nfetch.error = 1"
    assert list(_late_wiring([], _nodes(own, ast.Attribute))) == []


def _repeated_names(classes: Iterable[tuple[str, ast.ClassDef]]) -> list[str]:
    """Return each public name that several classes have, with the locations of the classes."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for place, node in classes:
        if not node.name.startswith("_"):
            found[node.name].append(f"{place}:{node.lineno}")
    return [f"{name}: {', '.join(at)}" for name, at in sorted(found.items()) if len(at) > 1]


def test_public_class_names_in_the_package_are_unique() -> None:
    assert (
        _repeated_names(
            (_relative(path), node) for path in SOURCES for node in nodes_of(path, ast.ClassDef)
        )
        == []
    )
    code = "class One: pass\nclass _Own: pass\nclass _Own: pass\nclass One: pass\nclass Two: pass"
    classes = [("module.py", node) for node in _nodes(code, ast.ClassDef)]
    assert _repeated_names(classes) == ["One: module.py:1, module.py:4"]


def test_source_files_have_at_most_600_lines_and_no_banned_name() -> None:
    paths = SOURCES + TESTS + TOOLS
    assert [
        _relative(path)
        for path in paths
        if len(path.read_text().splitlines()) > FILE_LINES_MAX or path.name in BANNED_NAMES
    ] == []


def test_length_of_every_function_is_limited() -> None:
    """The limit is lower in the tests than in the package and in contrib."""
    assert _long_functions(SOURCES + TOOLS, FUNCTION_LINES_MAX) == []
    assert _long_functions(TESTS, TEST_FUNCTION_LINES_MAX) == []


def _undocumented(tree: ast.Module) -> Iterator[str]:
    """Yield the public functions of a module, except tests, that have no docstring."""
    for node in tree.body:
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            and not node.name.startswith(("_", "test_"))
            and ast.get_docstring(node) is None
        ):
            yield node.name


def test_public_functions_of_the_tests_have_docstrings() -> None:
    assert [
        f"{_relative(path)}: {name}" for path in TESTS for name in _undocumented(tree_of(path))
    ] == []
    code = "def helper(): pass\ndef _private(): pass\ndef test_behaviour(): pass"
    assert list(_undocumented(ast.parse(code))) == ["helper"]


def test_package_init_file_contains_only_a_docstring() -> None:
    """The length of the docstring is limited, and the package imports no module."""
    wrong = []
    for path in SOURCES:
        if path.name == "__init__.py" and path.parent.name != "s3fs_meta":
            tree = tree_of(path)
            lines = len((ast.get_docstring(tree) or "").splitlines())
            if len(tree.body) != 1 or not GLOSSARY_LINES_MIN <= lines <= GLOSSARY_LINES_MAX:
                wrong.append(f"{_relative(path)}: {lines} lines, {len(tree.body)} statements")
    assert wrong == []


def test_folder_of_the_package_has_3_to_15_modules() -> None:
    """Modules whose names begin with two underscores are not counted."""
    folders: defaultdict[str, int] = defaultdict(int)
    for path in SOURCES:
        folders[_relative(path.parent)] += not path.name.startswith("__")
    del folders[ONE_MODULE_PER_COMMAND]
    assert {
        folder: modules
        for folder, modules in folders.items()
        if not FOLDER_MODULES_MIN <= modules <= FOLDER_MODULES_MAX
    } == {}


def _has_tests(path: Path) -> bool:
    """Return whether a test module exists at the same path below tests."""
    inner = path.relative_to(ROOT / "s3fs_meta")
    return (ROOT / "tests" / inner).with_name(f"test_{inner.name}").exists()


def test_every_module_of_the_package_is_tested() -> None:
    """Each module is imported by a test, has its own test module, or is a listed exception."""
    imported = {name for path in TESTS for name in _imported(path)}
    untested = {
        name
        for path in SOURCES
        if path.name != "__init__.py" and not _has_tests(path)
        for name in [".".join(path.relative_to(ROOT).with_suffix("").parts)]
        if name not in imported
    }
    assert untested == {f"s3fs_meta.{name}" for name in TESTED_BY_USE}


def test_buffers_are_copied_before_a_function_keeps_them() -> None:
    """If the result of a function keeps a buffer, its argument must be an immutable copy."""
    assert [
        f"{_relative(path)}:{line}"
        for path in SOURCES
        if _relative(path) not in KEPT_MAPPINGS
        for line in _kept_buffers(nodes_of(path, ast.Call))
    ] == []


def test_source_check_finds_a_memoryview_passed_to_a_function_that_keeps_it() -> None:
    bad, good = "rows = ONE.iter_unpack(memoryview(data)[4:end])", "ONE.iter_unpack(bytes(view))"
    assert list(_kept_buffers(_nodes(bad, ast.Call))) == [1]
    assert list(_kept_buffers(_nodes(good, ast.Call))) == []


def _skipped_cleanups(attempts: Iterable[ast.Try]) -> Iterator[int]:
    """Yield the lines of cleanup that a shortage of threads would prevent."""
    for attempt in attempts:
        handlers = [
            one
            for one in attempt.handlers
            if one.type is None or ast.unparse(one.type) == "BaseException"
        ]
        for cleanup in [*attempt.finalbody, *handlers]:
            for node in ast.walk(cleanup):
                if isinstance(node, ast.Name) and node.id == "in_thread":
                    yield node.lineno


def test_cleanup_does_not_need_a_thread() -> None:
    """``in_thread`` calls nothing during a shortage of threads, unlike ``in_thread_or_here``."""
    assert [
        f"{_relative(path)}:{line}"
        for path in SOURCES
        for line in _skipped_cleanups(nodes_of(path, ast.Try))
    ] == []


def test_source_check_finds_cleanup_that_needs_a_thread() -> None:
    code = "try:\n  a()\nexcept BaseException:\n  in_thread(b)\nfinally:\n  in_thread(c)\n"

    assert sorted(_skipped_cleanups(_nodes(code, ast.Try))) == [4, 6]


def _refused_by_python_3_10(classes: Iterable[ast.ClassDef]) -> Iterator[int]:
    """Yield the lines of named tuples with a second base class, such as ``Generic``."""
    for one in classes:
        names = {ast.unparse(base) for base in one.bases}
        if "NamedTuple" in names and len(names) > 1:
            yield one.lineno


def test_named_tuples_have_no_second_base_class() -> None:
    """Python 3.10 raises TypeError for such a class, and neither mypy nor ruff reports it."""
    assert [
        f"{_relative(path)}:{line}"
        for path in [*SOURCES, *TESTS]
        for line in _refused_by_python_3_10(nodes_of(path, ast.ClassDef))
    ] == []
    bad = "class Pair(NamedTuple, Generic[T]): ..."
    assert list(_refused_by_python_3_10(_nodes(bad, ast.ClassDef))) == [1]


def test_modules_with_tests_do_not_import_each_other() -> None:
    """Shared fixtures are in plain modules, so each test module can be moved independently."""
    assert [
        f"{_relative(path)}: {name}"
        for path in TESTS
        for name in sorted(set(_imported(path)))
        if name.startswith("tests.") and ".test_" in name
    ] == []


def test_no_text_has_markers_of_an_unfinished_merge() -> None:
    """git(1) marks both sides of a conflict with lines that begin with these characters."""
    marker = re.compile(r"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "changes").glob("*.md")]
    assert [_relative(path) for path in pages if marker.search(path.read_text("utf-8"))] == []
