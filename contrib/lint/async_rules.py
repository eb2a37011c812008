"""Run flake8-async on the files that changed since their last successful check.

    python contrib/lint/async_rules.py

A file is checked again only if its content, the configuration or the version of flake8-async
changed; ``.flake8_cache`` contains the digests of checked files. Files without async code are
skipped.

Only the rule ASYNC101 needs a walk of the concrete syntax tree, and this walk takes nine tenths of
the time. The rule finds a yield inside a cancel scope, so files without either are skipped.
"""

import configparser
import hashlib
import os
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import flake8_async
from flake8.main import cli
from flake8_async.visitors import ERROR_CLASSES_CST

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".flake8_cache"
FOLDERS: Final = ("s3fs_meta", "tests", "contrib")
ASYNC: Final = re.compile(rb"\b(async|trio)\b")
YIELD: Final = re.compile(r"\byield\b")
SCOPE: Final = re.compile(r"open_nursery|CancelScope|fail_at|fail_after|move_on_at|move_on_after")


def concrete_rules() -> set[str]:
    """Return the enabled rules that walk the concrete syntax tree."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    enabled = tuple(config["flake8"]["enable"].split(","))
    return {
        code for rule in ERROR_CLASSES_CST for code in rule.error_codes if code.startswith(enabled)
    }


class QuickRunner(flake8_async.Flake8AsyncRunner_cst):  # type: ignore[misc]
    """A runner that walks the concrete syntax tree of a file only if ASYNC101 can apply to it."""

    def run(self) -> Iterable[Any]:
        """Yield the problems in the file."""
        code = self.module.code
        if YIELD.search(code) and SCOPE.search(code):
            yield from super().run()


def digests() -> dict[Path, str]:
    """Return a digest of content, configuration and version for each file with async code."""
    rules = [(ROOT / "setup.cfg").read_bytes(), metadata.version("flake8-async").encode()]
    found = {}
    for path in sorted(each for folder in FOLDERS for each in (ROOT / folder).rglob("*.py")):
        content = path.read_bytes()
        if ASYNC.search(content):
            # The digest includes the path, because the configuration disables rules by path.
            parts = [str(path.relative_to(ROOT)).encode(), content, *rules]
            found[path] = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return found


def main() -> int:
    """Check the changed files; return the exit status of flake8."""
    assert concrete_rules() == {"ASYNC101"}, "QuickRunner is valid for ASYNC101 only"
    passed = set(CACHE.read_text().split()) if CACHE.exists() else set()
    found = digests()
    changed = [path for path, digest in found.items() if digest not in passed]
    if changed:
        # All jobs of flake8 also use the replaced class, because they are forks of this process.
        flake8_async.Flake8AsyncRunner_cst = QuickRunner
        os.chdir(ROOT)
        if status := cli.main([*map(str, changed)]):
            return int(status)
    CACHE.write_text("\n".join(found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
