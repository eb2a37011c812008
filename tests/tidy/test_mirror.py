"""Every source module has a test module at the same path, and the other way round."""

from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]

# Modules without a test module of their own. Each has a reason, and a place where it is tested.
TESTED_ELSEWHERE: Final = {
    "__main__.py": "one line; every test of cli/ that runs a process goes through it",
    "errors.py": "fields and texts; tests/console/test_exits.py and tests/fuse/test_errnos.py walk it",
    "limits.py": "constants; their relations are asserted where they are",
    "model.py": "values without behaviour",
    "sync/changelog/frozen.py": "values; tests/sync/changelog/test_writer.py makes and closes them",
    "sync/hooks.py": "a list of names; tests/docs compares it with docs/design/durability.md",
    "sync/progress.py": "a type and a function that does nothing",
}
# Test modules that are about several modules together.
OF_SEVERAL: Final = {
    "codec/test_collected_errors.py": "errors that once crashed the interpreter",
    "fs/test_costs.py": "statements of each operation",
    "fuse/test_bad_rows.py": "values of another type in every column, and every handler",
    "meta/test_recording.py": "rows of every table under SQLite's session extension",
    "sync/test_broken_chain.py": "readers of a chain with a damaged or missing changelog",
    "sync/test_crash_points.py": "a kill at every step of shipping",
    "sync/test_damaged_objects.py": "every kind of object, damaged in every way",
    "sync/test_one_writer.py": "two writers, late requests, wrong clocks",
    "sync/test_version_1.py": "what an earlier version left, wherever it may be",
}
# Folders of tests that do not mirror a folder of sources: docs/design/testing.md says what for.
OTHER_TESTS: Final = {
    "bench",
    "contract",
    "damage_matrix",
    "fuzz",
    "model",
    "power",
    "end_to_end",
    "docs",
    "soak",
    "tidy",
}


def _sources() -> set[str]:
    root = ROOT / "s3fs_meta"
    return {
        str(path.relative_to(root)) for path in root.rglob("*.py") if path.name != "__init__.py"
    }


def _needs_tests(source: str) -> bool:
    """Return whether a module needs tests of its own; what only tests use is tested by use."""
    return not source.startswith("testing/") and source not in TESTED_ELSEWHERE


def _tests() -> set[str]:
    root = ROOT / "tests"
    return {
        str(path.relative_to(root))
        for path in root.rglob("test_*.py")
        if path.relative_to(root).parts[0] not in OTHER_TESTS
    }


def _test_of(source: str) -> str:
    path = Path(source)
    return str(path.with_name(f"test_{path.name}"))


def test_every_module_has_a_test_module() -> None:
    """Whoever changes a module knows where its tests are."""
    missing = {one for one in _sources() if _test_of(one) not in _tests()}

    assert {one for one in missing if _needs_tests(one)} == set()


def test_every_test_module_has_a_module() -> None:
    """A test of something that is gone, or that has another name, is noticed."""
    assert _tests() - {_test_of(one) for one in _sources()} == OF_SEVERAL.keys()


def test_excuses_are_needed() -> None:
    """An excuse goes when its module does, or when it gets tests."""
    assert TESTED_ELSEWHERE.keys() <= _sources()
    assert [one for one in TESTED_ELSEWHERE if _test_of(one) in _tests()] == []
