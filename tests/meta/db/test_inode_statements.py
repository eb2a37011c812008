"""Every SQL statement on the table of inodes goes through ``db.inodes``.

Rows that the open commit group changed are in memory until ``db.inodes`` writes them. A statement
that bypasses ``db.inodes`` reads old rows. These tests read the text of every statement in the
package, even of statements that no test runs. ``tests.statements`` checks the statements that
tests run.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import s3fs_meta
from s3fs_meta.meta.db.database import Database
from s3fs_meta.meta.tables import inodes
from s3fs_meta.model import ROOT_INO
from tests.statements import OWNERS
from tests.syntax_trees import tree_of

PACKAGE = Path(s3fs_meta.__file__).parent
RUNS = frozenset({"one", "all", "iterate", "run", "run_many"})
RAW = frozenset({"execute", "executemany"})
USES_TABLE = re.compile(r"\binodes\b", re.IGNORECASE)

# fsck and offline tools may use the inode table directly, because they disable its cache with
# ``write_through``: see ``check.context``, ``rebuild.finish`` and ``image_rows.adopt``.
WRITES_THROUGH = ("check/", "meta/offline/")

# These modules use a connection without ``db.inodes``, and read only rows that are in the table.
OTHER_CONNECTIONS = frozenset(
    {
        "meta/db/schema.py",  # This module runs before ``db.inodes`` exists.
        "meta/trees/tree_paths.py",  # This module reads only committed rows.
    }
)

# These functions build SQL statements from variables, but not for the table of inodes.
COMPOSED = frozenset(
    {
        ("meta/db/database.py", "commit"),  # The statement updates the counters.
        ("meta/next_numbers.py", "_highest"),
        ("meta/tables/blocks.py", "near_in_pack"),
        ("meta/tables/properties.py", "_keys"),
        ("meta/tables/xattrs.py", "sum_bytes"),
        # The statement reads the past or the current database.
        ("meta/trees/tree_copies.py", "_copy_rows"),
        ("meta/trees/tree_copies.py", "copy_inode"),
        ("meta/trees/tree_copies.py", "_sums"),  # The statement reads a temporary table.
    }
)


class Statement(NamedTuple):
    """An SQL statement in the source code of a module."""

    file: str
    function: str
    runs: str  # The name of the method that runs the statement.
    of: str  # The source text of the object on which the method is called.
    text: str
    is_complete: bool  # True if the text of the statement is known completely.


class Source:
    """A module of the package, with its syntax tree and its constants."""

    def __init__(self, path: Path) -> None:
        self.file = path.relative_to(PACKAGE).as_posix()
        self.tree = tree_of(path)
        self.constants: dict[str, ast.expr] = {}
        self.imports: dict[str, str] = {}  # Maps each imported name to its module.
        for node in self.tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.constants[name] = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self.constants[name] = value
                case ast.ImportFrom(module=str(module), names=names):
                    for alias in names:
                        self.imports[alias.asname or alias.name] = module
                case _:
                    pass


@functools.cache
def sources() -> dict[str, Source]:
    """Return all modules of the package by path."""
    return {source.file: source for source in map(Source, sorted(PACKAGE.rglob("*.py")))}


class Text:
    """The constant parts of an expression that computes an SQL statement."""

    def __init__(self, source: Source, function: ast.AST | None, expression: ast.expr) -> None:
        self.parts: list[str] = []
        self.is_complete = True
        self._add(source, function, expression, frozenset())

    def _add(
        self, source: Source, function: ast.AST | None, node: ast.expr, seen: frozenset[str]
    ) -> None:
        match node:
            case ast.Constant(value=value):
                self.parts.append(str(value))
            case ast.JoinedStr(values=several) | ast.Tuple(elts=several) | ast.List(elts=several):
                for one in several:
                    self._add(source, function, one, seen)
            case ast.FormattedValue(value=one) | ast.Subscript(value=one):
                self._add(source, function, one, seen)
            case ast.BinOp(left=left, right=right) | ast.IfExp(body=left, orelse=right):
                self._add(source, function, left, seen)
                self._add(source, function, right, seen)
            case ast.Name(id=name) if name not in seen:
                self._add_name(source, function, name, seen | {name})
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                self._add_constant_of(source, owner, name, seen)
            case ast.Name():
                pass
            case _:
                self.is_complete = _is_harmless(node) and self.is_complete

    def _add_name(
        self, source: Source, function: ast.AST | None, name: str, seen: frozenset[str]
    ) -> None:
        values = list(_assigned(function, name)) if function is not None else []
        for value in values:
            self._add(source, function, value, seen)
        if values:
            return
        if name in source.constants:
            self._add(source, None, source.constants[name], seen)
            return
        other = sources().get(_file_of(source.imports.get(name, "")))
        if other is not None and name in other.constants:
            self._add(other, None, other.constants[name], seen)
        else:
            self.is_complete = False

    def _add_constant_of(self, source: Source, owner: str, name: str, seen: frozenset[str]) -> None:
        other = sources().get(_file_of(f"{source.imports.get(owner, '')}.{owner}"))
        if other is not None and name in other.constants:
            self._add(other, None, other.constants[name], seen)
        elif not owner[:1].isupper():  # An enumeration member is a number in the statement.
            self.is_complete = False


def _file_of(module: str) -> str:
    return module.removeprefix("s3fs_meta.").replace(".", "/") + ".py"


def _is_harmless(node: ast.expr) -> bool:
    """Return True if an expression is a function call whose arguments are all constants."""
    return isinstance(node, ast.Call) and all(isinstance(one, ast.Constant) for one in node.args)


def _assigned(function: ast.AST, name: str) -> Iterator[ast.expr]:
    """Yield the values that a function assigns to a name, and the iterables of loops over it."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value
            case ast.For(target=ast.Name(id=found), iter=value) if found == name:
                yield value


def _calls(node: ast.AST, function: ast.AST | None) -> Iterator[tuple[ast.Call, ast.AST | None]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, function
        inner = child if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) else function
        yield from _calls(child, inner)


@functools.cache
def statements(methods: frozenset[str]) -> tuple[Statement, ...]:
    """Return the SQL statements that the package passes to methods with these names."""
    return tuple(_statements(methods))


def _statements(methods: frozenset[str]) -> Iterator[Statement]:
    for source in sources().values():
        for call, function in _calls(source.tree, None):
            match call:
                case ast.Call(func=ast.Attribute(value=of, attr=runs), args=[sql, *_]) if (
                    runs in methods
                ):
                    text = Text(source, function, sql)
                    yield Statement(
                        source.file,
                        getattr(function, "name", ""),
                        runs,
                        ast.unparse(of),
                        " ".join(text.parts),
                        text.is_complete,
                    )


def shown(found: list[Statement]) -> list[str]:
    """Return statements as lines for the message of an assertion."""
    return [f"{one.file} {one.function}: {one.of}.{one.runs}({one.text[:60]!r}…)" for one in found]


def test_inode_table_is_queried_only_through_db_inodes() -> None:
    """Only ``db.inodes`` and the listed modules run statements on the table of inodes."""
    ran = [one for one in statements(RUNS) if not one.file.startswith(WRITES_THROUGH)]
    past = [
        one
        for one in ran
        if USES_TABLE.search(one.text) and one.file not in OWNERS and not one.of.endswith(".inodes")
    ]
    assert shown(past) == []
    assert sum(one.of.endswith(".inodes") for one in ran) > 20, "no statements found"


def test_sql_statements_consist_only_of_constants() -> None:
    """COMPOSED lists every SQL statement that does not consist of constants."""
    of_database = re.compile(r"(?:\b|_)(?:db|database|base)$|^self$")
    hidden = {
        (one.file, one.function)
        for one in statements(RUNS)
        if not one.is_complete
        and of_database.search(one.of)
        and not one.file.startswith(WRITES_THROUGH)
        and one.file not in OWNERS
    }
    assert hidden == COMPOSED, "add statements without inodes to COMPOSED"


def test_modules_that_read_inodes_with_a_separate_connection_are_listed() -> None:
    """A module that reads with a separate connection sees only committed rows."""
    past = {
        one.file
        for one in statements(RAW)
        if USES_TABLE.search(one.text) and not one.file.startswith(WRITES_THROUGH)
    }
    assert past == OTHER_CONNECTIONS


def test_guard_detects_an_sql_statement_that_bypasses_db_inodes(db: Database) -> None:
    """In all tests, a guard checks which tables each statement uses."""
    inodes.change_directory(db, ROOT_INO, 5, entries=1)
    namespace = {"db": db, "sql": "SELECT ino FROM INODES"}
    code = compile("found = db.one(sql)", str(PACKAGE / "meta/tables/made_up.py"), "exec")
    with pytest.raises(AssertionError, match="bypasses"):
        exec(code, namespace)
    assert db.inodes.one("SELECT size_bytes FROM inodes") == (1,)
