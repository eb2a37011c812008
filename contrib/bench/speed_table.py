"""Tables of saved results in Markdown, among them the table of everyday work in the README.

``python -m contrib.bench page --table`` prints the table of the README. A test compares the README
with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from contrib.bench.names import CEILING, DISK, JUICEFS, OURS, S3QL

COLUMNS: Final = (DISK, CEILING, OURS, JUICEFS, S3QL)


def table(workloads: Mapping[str, Any]) -> str:
    """Return the median seconds of the steps as a Markdown table, for the README.

    A dash marks a step that S3QL did not complete. A step that another filesystem did not complete
    is omitted.
    """
    complete = {
        step: subjects
        for step, subjects in workloads["seconds"].items()
        if set(COLUMNS) - {S3QL} <= set(subjects)
    }
    return seconds_table(complete, COLUMNS)


def seconds_table(steps: Mapping[str, Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return the seconds of *steps* as a Markdown table; a dash marks a value that is missing.

    Args:
        steps: for each step, the result of each filesystem: a number, or a record with a median.
        columns: the filesystems, in this order; those without any result are omitted.
    """
    found = [name for name in columns if any(name in subjects for subjects in steps.values())]
    lines = [row("seconds", found), row("---", ["---:"] * len(found))]
    for step, subjects in steps.items():
        cells = [_seconds(subjects[name]) if name in subjects else "–" for name in found]
        if OURS in found:
            cells[found.index(OURS)] = f"**{cells[found.index(OURS)]}**"
        lines.append(row(step, cells))
    return "\n".join(lines) + "\n"


def row(first: str, cells: Sequence[str]) -> str:
    """Return one row of a Markdown table."""
    return f"| {' | '.join([first, *cells])} |"


def rounded(value: float, digits: int) -> str:
    """Format *value* with a number of significant *digits*, and large numbers with commas."""
    return f"{float(f'{value:.{digits}g}'):,.10g}"


def _seconds(result: Any) -> str:
    """Return the seconds of a result with two significant digits."""
    return rounded(result["median"] if isinstance(result, Mapping) else result, 2)
