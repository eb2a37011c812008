"""Run flake8-async on the files that changed since their last successful check.

python contrib/lint/async_rules.py

A file is checked again only if its content, the configuration or the version of flake8-async
changed; ``.flake8_cache`` contains the digests of checked files. Files without async code are
skipped.

Two parts of a check take most of the time: flake8 runs all its other rules, whose results the
configuration discards; and one rule of flake8-async walks a second syntax tree. The script
therefore first runs all async rules except the slow one, without flake8. Then flake8 checks only
the files in which this pass found a problem, and the files to which the slow rule can apply.
"""

import argparse
import ast
import configparser
import hashlib
import multiprocessing
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

import flake8_async
from flake8.main import cli
from flake8_async.runner import Flake8AsyncRunner
from flake8_async.visitors import ERROR_CLASSES_CST

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".flake8_cache"
FOLDERS: Final = ("s3fs_meta", "tests", "contrib")
ASYNC: Final = re.compile(rb"\b(async|trio)\b")
SCOPE: Final = re.compile(r"open_nursery|CancelScope|fail_at|fail_after|move_on_at|move_on_after")


def _configuration() -> configparser.SectionProxy:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config["flake8"]


def concrete_rules() -> set[str]:
    """Return the enabled rules that walk the concrete syntax tree."""
    enabled = tuple(_configuration()["enable"].split(","))
    return {
        code for rule in ERROR_CLASSES_CST for code in rule.error_codes if code.startswith(enabled)
    }


def yields_in_scope(tree: ast.Module) -> bool:
    """Return whether ASYNC101 may apply: a yield inside a nursery or cancel scope."""
    return any(
        isinstance(node, ast.With | ast.AsyncWith)
        and any(SCOPE.search(ast.unparse(item)) for item in node.items)
        and any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node))
        for node in ast.walk(tree)
    )


def needs_flake8(path: Path) -> bool:
    """Return whether flake8 may report a problem in a file."""
    source = path.read_text()
    tree, lines = ast.parse(source), source.splitlines()
    problems = Flake8AsyncRunner.run(tree, flake8_async.Plugin(tree, []).options)
    return yields_in_scope(tree) or any(
        "noqa" not in (line := lines[problem.line - 1]) or problem.code not in line
        for problem in problems
    )


def configure() -> None:
    """Set the options of setup.cfg in flake8-async without running flake8."""
    config = _configuration()
    parser = argparse.ArgumentParser()
    flake8_async.Plugin.add_options(parser)
    words = [f"--{name}={config[name]}" for name in ("enable", "async200-blocking-calls")]
    flake8_async.Plugin.parse_options(parser.parse_args(words))


def digests() -> dict[Path, str]:
    """For each file with async code, return a digest of content, configuration and version."""
    rules = [(ROOT / "setup.cfg").read_bytes(), metadata.version("flake8-async").encode()]
    found = {}
    for path in sorted(each for folder in FOLDERS for each in (ROOT / folder).rglob("*.py")):
        content = path.read_bytes()
        if ASYNC.search(content):
            # The digest includes the path, because the configuration disables rules by path.
            parts = [str(path.relative_to(ROOT)).encode(), content, *rules]
            found[path] = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return found


def check(paths: list[Path]) -> int:
    """Check all given files with flake8; return its exit status."""
    assert concrete_rules() == {"ASYNC101"}, "the quick pass leaves out other rules"
    with multiprocessing.get_context("fork").Pool(initializer=configure) as pool:
        needed = pool.map(needs_flake8, paths, chunksize=4)
    found = [str(path) for path, flake8 in zip(paths, needed, strict=True) if flake8]
    os.chdir(ROOT)
    return int(cli.main(found)) if found else 0


def main() -> int:
    """Check only the changed files with flake8; return its exit status."""
    passed = set(CACHE.read_text().split()) if CACHE.exists() else set()
    found = digests()
    changed = [path for path, digest in found.items() if digest not in passed]
    if changed and (status := check(changed)):
        return status
    CACHE.write_text("\n".join(found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
