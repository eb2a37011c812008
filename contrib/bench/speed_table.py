"""The table of everyday work in the README, made from saved results.

``python -m contrib.bench page --table`` prints the table. A test compares it with the README.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from contrib.bench.names import CEILING, DISK, JUICEFS, OURS, S3QL

COLUMNS: Final = (DISK, CEILING, OURS, JUICEFS, S3QL)
DIGITS: Final = 2


def table(workloads: Mapping[str, Any]) -> str:
    """Return the median seconds of the steps as a Markdown table.

    A dash marks a step that S3QL did not complete. A step that another filesystem did not complete
    is omitted.
    """
    lines = [_row("seconds", COLUMNS), _row("---", ["---:"] * len(COLUMNS))]
    for step, subjects in workloads["seconds"].items():
        if set(COLUMNS) - {S3QL} <= set(subjects):
            cells = [
                _seconds(subjects[name]["median"]) if name in subjects else "–" for name in COLUMNS
            ]
            cells[COLUMNS.index(OURS)] = f"**{cells[COLUMNS.index(OURS)]}**"
            lines.append(_row(step, cells))
    return "\n".join(lines) + "\n"


def _row(first: str, cells: Sequence[str]) -> str:
    return f"| {' | '.join([first, *cells])} |"


def _seconds(value: float) -> str:
    """Return seconds with two significant digits."""
    return f"{float(f'{value:.{DIGITS}g}'):g}"
