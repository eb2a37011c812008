"""Write requirements/dev.txt: one set of pins for Python 3.10 and one for what came later.

Newer releases of some packages need Python 3.11, so each version resolves by itself and a pin
that differs gets a marker. Needs ``python3.10`` and ``python3.11`` in PATH.
"""

import configparser
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = "3.10", "3.11"


def frozen(version: str, requirements: list[str]) -> dict[str, str]:
    """Return name to version of everything that *requirements* pull in under one Python."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([f"python{version}", "-m", "venv", folder], check=True)
        pip = f"{folder}/bin/pip"
        subprocess.run([pip, "install", "--quiet", *requirements], check=True)
        listing = subprocess.run([pip, "freeze"], check=True, capture_output=True, text=True)
    return dict(line.split("==") for line in listing.stdout.splitlines() if "==" in line)


def merged(old: dict[str, str], new: dict[str, str]) -> list[str]:
    """Return the lines of dev.txt, ascending by name."""
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


def main() -> None:
    """Resolve twice and write the file."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    runtime = [
        line
        for line in setup["options"]["install_requires"].splitlines()
        if line and not line.startswith("#")
    ]
    dev = [
        line
        for line in (ROOT / "requirements/dev.in").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    head = [
        "# Pinned versions of everything that building, testing and checking needs.",
        "# Made from setup.cfg and dev.in by `make pins`; do not edit by hand.",
    ]
    lines = merged(frozen(OLD, runtime + dev), frozen(NEW, runtime + dev))
    (ROOT / "requirements/dev.txt").write_text("\n".join(head + lines) + "\n")


if __name__ == "__main__":
    main()
