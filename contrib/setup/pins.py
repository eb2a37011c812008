"""Write requirements/*.txt: the pinned versions for Python 3.10 and for later versions.

Newer releases of some packages need Python 3.11. So pip resolves the requirements under each of the
two versions. A pin that differs gets a marker for its version. ``python3.10`` and ``python3.11``
must be in PATH.
"""

import configparser
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "3.10", "3.11"


def frozen(version: str, requirements: list[str]) -> dict[str, str]:
    """Return the version of each package that *requirements* need under one version of Python."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([f"python{version}", "-m", "venv", folder], check=True)
        pip = f"{folder}/bin/pip"
        subprocess.run([pip, "install", "--quiet", *requirements], check=True)
        listing = subprocess.run([pip, "freeze"], check=True, capture_output=True, text=True)
    return dict(line.split("==") for line in listing.stdout.splitlines() if "==" in line)


def merged(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Return the lines of a file with pinned versions, sorted by package name."""
    lines = []
    for name in sorted(old.keys() | new.keys(), key=str.lower):
        if old.get(name) == new.get(name):
            lines.append(f"{name}=={new[name]}")
            continue
        if name in old:
            lines.append(f'{name}=={old[name]} ; python_version < "{NEW}"')
        if name in new:
            lines.append(f'{name}=={new[name]} ; python_version >= "{NEW}"')
    return lines


def listed(text: str) -> list[str]:
    """Return the requirements in *text*, which has one per line."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def write(name: str, purpose: str, requirements: list[str]) -> None:
    """Resolve the requirements for both versions of Python, and write one file of pins."""
    head = [f"# Pinned versions {purpose}.", "# Made by `make pins`; do not edit by hand."]
    lines = merged(frozen(OLD, requirements), frozen(NEW, requirements))
    (ROOT / "requirements" / name).write_text("\n".join(head + lines) + "\n")


def main() -> None:
    """Write the files of pinned versions, dev.txt and bench.txt."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    runtime = listed(setup["options"]["install_requires"])
    dev = listed((ROOT / "requirements/dev.in").read_text())
    write("dev.txt", "of everything that building, testing and checking needs", runtime + dev)
    bench = listed(setup["options.extras_require"]["bench"])
    write("bench.txt", "of what the page of the benchmarks needs", bench)


if __name__ == "__main__":
    main()
