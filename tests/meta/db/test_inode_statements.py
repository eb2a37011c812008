"""Every statement of the package on the table of inodes is declared: it goes through its owner.

Rows that the open group changed are in memory until the owner writes them, so a statement that
goes past it sees old rows. Here the text of every statement is looked at, also of those that no
test runs; ``tests.statements`` asks SQLite about those that run.
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

PACKAGE = Path(s3fs_meta.__file__).parent
RUNS = frozenset({"one", "all", "iterate", "run", "run_many"})
RAW = frozenset({"execute", "executemany"})
USES_TABLE = re.compile(r"\binodes\b", re.IGNORECASE)

# Offline tools have statements about everything, and write through: fsck (``check.context``), and
# databases that are made anew (``finish`` of ``rebuild``, ``adopt`` of ``image_rows``).
WRITES_THROUGH = ("check/", "meta/offline/")

# Connections of their own, or tables that no rows in memory belong to yet.
OTHER_CONNECTIONS = frozenset(
    {
        "meta/db/schema.py",  # runs before the database is open
        "meta/trees/tree_paths.py",  # reads a snapshot, or after a commit
    }
)

# Statements that are made of more than constants, none of them with this table.
COMPOSED = frozenset(
    {
        ("meta/replica.py", "_touch"),  # temporary tables
        ("meta/db/database.py", "commit"),  # counters
        ("meta/tables/blocks.py", "near_in_pack"),
        ("meta/tables/properties.py", "_keys"),
        ("meta/tables/xattrs.py", "sum_bytes"),
        ("meta/trees/bulk_records.py", "header"),  # a pragma
    }
)


class Statement(NamedTuple):
    """A statement as a module has it."""

    file: str
    function: str
    runs: str  # the method
    of: str  # whose method
    text: str
    is_complete: bool  # True if the complete text is known


class Source:
    """One module: its tree and its constants."""

    def __init__(self, path: Path) -> None:
        self.file = path.relative_to(PACKAGE).as_posix()
        self.tree = ast.parse(path.read_text())
        self.constants: dict[str, ast.expr] = {}
        self.imports: dict[str, str] = {}  # imported name and its module
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


SOURCES = {source.file: source for source in map(Source, sorted(PACKAGE.rglob("*.py")))}


class Text:
    """The text of an SQL expression, as far as it is made of constants."""

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
        other = SOURCES.get(_file_of(source.imports.get(name, "")))
        if other is not None and name in other.constants:
            self._add(other, None, other.constants[name], seen)
        else:
            self.is_complete = False

    def _add_constant_of(self, source: Source, owner: str, name: str, seen: frozenset[str]) -> None:
        other = SOURCES.get(_file_of(f"{source.imports.get(owner, '')}.{owner}"))
        if other is not None and name in other.constants:
            self._add(other, None, other.constants[name], seen)
        elif not owner[:1].isupper():  # a member of an enumeration is a number
            self.is_complete = False


def _file_of(module: str) -> str:
    return module.removeprefix("s3fs_meta.").replace(".", "/") + ".py"


def _is_harmless(node: ast.expr) -> bool:
    """Return whether an expression is a function of constants: an argument, or columns."""
    return isinstance(node, ast.Call) and all(isinstance(one, ast.Constant) for one in node.args)


def _assigned(function: ast.AST, name: str) -> Iterator[ast.expr]:
    """Yield what a function assigns to a name, and what it goes through with it."""
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
    """Return what the package runs by methods of these names."""
    return tuple(_statements(methods))


def _statements(methods: frozenset[str]) -> Iterator[Statement]:
    for source in SOURCES.values():
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
    """Return statements for people."""
    return [f"{one.file} {one.function}: {one.of}.{one.runs}({one.text[:60]!r}…)" for one in found]


def test_statements_on_inodes_go_through_the_owner() -> None:
    """Statements on inodes run by ``db.inodes``; exceptions are declared."""
    ran = [one for one in statements(RUNS) if not one.file.startswith(WRITES_THROUGH)]
    past = [
        one
        for one in ran
        if USES_TABLE.search(one.text) and one.file not in OWNERS and not one.of.endswith(".inodes")
    ]
    assert shown(past) == []
    assert sum(one.of.endswith(".inodes") for one in ran) > 20, "they are found"


def test_statements_are_made_of_constants() -> None:
    """Statements consist of constants, or are declared."""
    of_database = re.compile(r"(?:\b|_)(?:db|database|base)$|^self$")
    hidden = {
        (one.file, one.function)
        for one in statements(RUNS)
        if not one.is_complete
        and of_database.search(one.of)
        and not one.file.startswith(WRITES_THROUGH)
        and one.file not in OWNERS
    }
    assert hidden == COMPOSED, "a new one that does not use inodes is to be listed in COMPOSED"


def test_other_connections_to_the_table_are_declared() -> None:
    """Other connections to the table are declared; they read committed rows."""
    past = {
        one.file
        for one in statements(RAW)
        if USES_TABLE.search(one.text) and not one.file.startswith(WRITES_THROUGH)
    }
    assert past == OTHER_CONNECTIONS


def test_forgotten_statement_is_refused_where_it_runs(db: Database) -> None:
    """SQLite tells the guard of all tests which tables a statement uses, whatever its text."""
    inodes.change_directory(db, ROOT_INO, 5, entries=1)
    namespace = {"db": db, "sql": "SELECT ino FROM INODES"}
    code = compile("found = db.one(sql)", str(PACKAGE / "meta/tables/made_up.py"), "exec")
    with pytest.raises(AssertionError, match="goes past"):
        exec(code, namespace)
    assert db.inodes.one("SELECT size_bytes FROM inodes") == (1,)
