"""Rules for tests: a test uses no private name of another object, and replaces no constant.

Each rule lists every violation. A test that breaks a rule depends on how the code is written
instead of on its behaviour.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from s3fs_meta import limits
from s3fs_meta.browse import limits as browse_limits
from s3fs_meta.cli import limits as cli_limits
from s3fs_meta.control import limits as control_limits
from s3fs_meta.mount import limits as mount_limits
from tests.syntax_trees import nodes_of

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
# The documentation of the standard library makes these underscored names public.
DOCUMENTED: Final = {"_replace", "_asdict", "_fields", "_make", "_exit", "_getframe"}
_SYNCFS: Final = "the only call of syncfs(2) of the cache, whose failure no filesystem can cause"
# Tests may use only these private names; each entry gives a reason.
PRIVATE: Final = {
    "tests/cache/files/test_block_files.py _directory": "two threads must meet within one call",
    "tests/cache/files/test_block_files.py _syncfs": _SYNCFS,
    "tests/sync/lease/test_keeper.py _store": "the keeper's store must become slow after its start",
    "tests/sync/lease/test_keeper.py _write": "a second process writes without reading the lease",
    "tests/sync/opening/test_failed_sync.py _syncfs": _SYNCFS,
    "tests/sync/test_failed_syncs.py _syncfs": _SYNCFS,
}
_STANDARD: Final = "belongs to the standard library"
_MACHINE: Final = "a file of the kernel or of the system that identifies the machine"
_NEWER: Final = "the test acts as a program of another version"
_DEEP: Final = "the limit would pass through several constructors only for a test"
# Tests may replace only these constants; each entry gives a reason.
# If a parameter can set a limit, the table must not contain this limit.
REPLACED: Final = {
    "BLOCK_DEVICES": _MACHINE,
    "BOOT_ID": _MACHINE,
    "CONTAINER_MARKS": _MACHINE,
    "MACHINE_ID": _MACHINE,
    "PRODUCT_UUID": _MACHINE,
    "NETWORK_FILESYSTEMS": "the numbers of filesystems that no test can mount",
    "PROGRAMS": "programs that may be installed on the machine",
    "CDLL": _STANDARD,
    "ZIP64_LIMIT": _STANDARD,
    "KNOWN_FEATURES": _NEWER,
    "SCHEMA_VERSION": _NEWER,
    "VERSION": _NEWER,
    "CACHED_BLOCKS_MAX": _DEEP,
    "DIRTY_BLOCKS_MAX": _DEEP,
    "FOLLOW_TOUCHED_MAX": _DEEP,
    "FSCK_UNNAMED_PACKS_MAX": _DEEP,
    "HISTORY_INODES_MAX": _DEEP,
    "HISTORY_NAMES_MAX": _DEEP,
    "HISTORY_NAME_BYTES_MAX": _DEEP,
    "IMAGE_PIECE_BYTES": "part of the format, known to the codec and to each reader of images",
    "KEPT_POINTS_MAX": _DEEP,
    "OPEN_BLOCKS_MAX": _DEEP,
    "RANGE_BUFFERS_IDLE_S": _DEEP,
    "RECLAIM_PACK_ROWS": _DEEP,
    "REQUESTS_LOCK_S_MAX": _DEEP,
    "TREE_PAUSE_S": _DEEP,
    "TREE_WAL_BYTES_MAX": _DEEP,
    "WAL_BYTES_MAX": _DEEP,
    "WAL_CHECKPOINT_BYTES": _DEEP,
}
_PRIVATE: Final = re.compile(r"_[A-Za-z]")
_CONSTANT: Final = re.compile(r"_?[A-Z][A-Z0-9_]+$")
LIMITS: Final = {
    name
    for module in (limits, browse_limits, cli_limits, control_limits, mount_limits)
    for name in vars(module)
    if _CONSTANT.match(name)
}


def _is_private(name: str) -> bool:
    return bool(_PRIVATE.match(name)) and name not in DOCUMENTED


def _is_own(node: ast.Attribute) -> bool:
    """Return whether the code accesses an attribute through self, cls or super()."""
    return ast.unparse(node.value) in {"self", "cls", "super()"}


def _named_in_calls(calls: Iterable[ast.Call]) -> Iterator[str]:
    """Yield attribute names that setattr, getattr and delattr receive as a string."""
    for node in calls:
        if ast.unparse(node.func).rpartition(".")[2] in {"setattr", "getattr", "delattr"}:
            for argument in node.args[:2]:
                yield from _texts(ast.walk(argument))


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the last part of each dotted string, as in ``s3fs_meta.fs.trees.warm.ROWS_MAX``."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.rpartition(".")[2]


def _private(
    attributes: Iterable[ast.Attribute],
    calls: Iterable[ast.Call],
    imports: Iterable[ast.ImportFrom],
) -> set[str]:
    """Return the private names that the code accesses in other objects and modules."""
    names = {node.attr for node in attributes if not _is_own(node)}
    names |= set(_named_in_calls(calls))
    names |= {alias.name for node in imports for alias in node.names}
    return {name for name in names if _is_private(name)}


def _replaced(
    attributes: Iterable[ast.Attribute], calls: Iterable[ast.Call], texts: Iterable[ast.Constant]
) -> set[str]:
    """Return the constants that the code assigns or replaces, and limits named in strings."""
    names = set(_named_in_calls(calls))
    names |= {
        node.attr for node in attributes if not isinstance(node.ctx, ast.Load) and not _is_own(node)
    }
    found = {name for name in names if _CONSTANT.match(name)}
    return found | LIMITS.intersection(_texts(texts))


def test_tests_access_no_private_attributes_of_other_objects() -> None:
    """If a test needs a private part of the code, the code must make this part public."""
    found = {
        f"{path.relative_to(ROOT)} {name}"
        for path in TESTS
        for name in _private(
            nodes_of(path, ast.Attribute), nodes_of(path, ast.Call), nodes_of(path, ast.ImportFrom)
        )
    }
    assert found == set(PRIVATE)


def test_tests_change_limits_only_through_parameters() -> None:
    """Code with a limit has a parameter for the limit, whose default is the constant."""
    found: dict[str, list[str]] = {}
    for path in TESTS:
        if path == Path(__file__):
            continue
        for name in _replaced(
            nodes_of(path, ast.Attribute), nodes_of(path, ast.Call), nodes_of(path, ast.Constant)
        ):
            found.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if name not in REPLACED} == {}
    assert set(REPLACED) == set(found)


def _nodes(code: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(code)))


def test_isolation_check_finds_private_names_and_replaced_constants() -> None:
    """The check finds direct uses, strings and imports, but not an object's own attributes."""
    for code, private, replaced in (
        ("a.b._c = 1", {"_c"}, set[str]()),
        ("self._a._b", {"_b"}, set[str]()),
        ("from a import _b", {"_b"}, set[str]()),
        ("patch.setattr(a, '_b', 1)", {"_b"}, set[str]()),
        ("patch.setattr('a.b.ROWS_MAX', 1)", set[str](), {"ROWS_MAX"}),
        ("setattr(a, '_ROWS', 1)", {"_ROWS"}, {"_ROWS"}),
        ("a.ROWS_MAX = 1", set[str](), {"ROWS_MAX"}),
        ("setattr(a, f'{b}.ROWS_MAX', 1)", set[str](), {"ROWS_MAX"}),
        ("for name in ('PACK_BLOCKS_MAX',): pass", set[str](), {"PACK_BLOCKS_MAX"}),
        ("self._a = super()._a; b = c.ROWS_MAX; d._replace(e=f.__name__)", set[str](), set[str]()),
    ):
        nodes = _nodes(code)
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        texts = [node for node in nodes if isinstance(node, ast.Constant)]
        assert _private(attributes, calls, imports) == private
        assert _replaced(attributes, calls, texts) == replaced
