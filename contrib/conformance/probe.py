#!/usr/bin/env python3
"""Print a table of the results of single POSIX and Linux operations in given directories.

    sudo contrib/conformance/probe.py /mnt/a /mnt/b

*yes* means that the operation had the effect that its manual page describes. *differs* means that
the operation had a different effect. An errno means that the operation was refused. Some operations
need root. The exit status is 0.
"""

import argparse
import errno
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from contrib.conformance import probe_attributes, probe_content, probe_names
from contrib.conformance.probe_checks import Different, Operation

YES = "yes"
_OPERATIONS = (*probe_names.OPERATIONS, *probe_content.OPERATIONS, *probe_attributes.OPERATIONS)


def answer(operation: Operation, place: Path) -> str:
    """Try one operation in a temporary directory; return its result as text for the table."""
    with tempfile.TemporaryDirectory(dir=place, prefix="probe-") as folder:
        try:
            operation.check(Path(folder))
        except Different as exc:
            return f"differs: {exc}"
        except OSError as exc:
            return errno.errorcode.get(exc.errno or 0, str(exc))
    return YES


def table(answers: Sequence[tuple[Operation, Sequence[str]]], places: Sequence[Path]) -> str:
    """Return the results as a Markdown table; the last line counts the *yes* results."""
    lines = [
        "| operation | page | " + " | ".join(map(str, places)) + " |",
        "| --- | --- |" + " --- |" * len(places),
        *(f"| {each.name} | {each.page} | {' | '.join(found)} |" for each, found in answers),
    ]
    counts = [sum(found[at] == YES for _, found in answers) for at in range(len(places))]
    lines.append(
        f"| **{len(answers)}** | | " + " | ".join(f"**{count}**" for count in counts) + " |"
    )
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Try every operation, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("place", nargs="+", type=Path, help="a directory on the filesystem to test")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    given = parser.parse_args(words)
    if os.geteuid() != 0:
        parser.error("some probed operations need root; run probe.py with sudo")
    answers = [(each, [answer(each, place) for place in given.place]) for each in _OPERATIONS]
    if given.json:
        rows = [
            {
                "operation": each.name,
                "page": each.page,
                "answers": dict(zip(map(str, given.place), found, strict=True)),
            }
            for each, found in answers
        ]
        print(json.dumps(rows, indent=2))
    else:
        print(table(answers, given.place))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
