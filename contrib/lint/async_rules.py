"""Run flake8-async on the files that changed since they last passed: it takes a third of a second each.

    python contrib/lint/async_rules.py

A file passes again without a look while its content, the configuration and the versions of the
rules are the same; ``.flake8_cache`` has the digests. Files without async code are not looked at.
"""

import hashlib
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".flake8_cache"
FOLDERS: Final = ("s3fs_meta", "tests", "contrib")
ASYNC: Final = re.compile(rb"\b(async|trio)\b")


def digests() -> dict[Path, str]:
    """Return a digest of all that decides, for each file with async code."""
    rules = [(ROOT / "setup.cfg").read_bytes(), metadata.version("flake8-async").encode()]
    found = {}
    for path in sorted(each for folder in FOLDERS for each in (ROOT / folder).rglob("*.py")):
        content = path.read_bytes()
        if ASYNC.search(content):
            # Rules are left out by path.
            parts = [str(path.relative_to(ROOT)).encode(), content, *rules]
            found[path] = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return found


def main() -> int:
    """Check what changed; return the status of flake8."""
    passed = set(CACHE.read_text().split()) if CACHE.exists() else set()
    found = digests()
    changed = [path for path, digest in found.items() if digest not in passed]
    if changed:
        words = [sys.executable, "-m", "flake8", *map(str, changed)]
        if status := subprocess.run(words, cwd=ROOT, check=False).returncode:
            return status
    CACHE.write_text("\n".join(found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
