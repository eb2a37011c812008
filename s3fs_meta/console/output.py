"""The results of commands on standard output: JSON for programs, tables for users."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from textwrap import indent
from typing import TYPE_CHECKING, Any

from s3fs_meta.console.printable import printable
from s3fs_meta.errors import UnprintedKeyError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024.0
_THREE_DIGITS = 99.95  # from here on, a number is shown without decimals
_SECOND_IN_MS = 0.9995  # times below this number of seconds are shown in ms
_MS_IN_US = 0.0009995  # times below this number of seconds are shown in µs
_SHORT_S = 10.0
_MINUTE_S = 60.0
_COLUMNS_MAX = 10_000  # width of a table in characters, so wide that no row is cut


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object to standard output."""
    sys.stdout.write(json_text(value) + "\n")


def json_text(value: Mapping[str, Any]) -> str:
    """Return one JSON object as text, as ``print_json`` prints it."""
    return json.dumps(value, indent=2)


def print_json_rows(value: Mapping[str, Any], name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Print one JSON object like ``print_json``, with a list of objects as its last field.

    Only the text of one row is in memory at a time.

    Args:
        value: the other fields; at least one.
        name: the name of the field with the list.
        rows: the objects of the list.
    """
    assert value, "at least one other field is required"
    write = sys.stdout.write
    write(json.dumps(value, indent=2).removesuffix("\n}") + f",\n  {json.dumps(name)}: [")
    before, after = "", ""
    for row in rows:
        write(before + indent("\n" + json.dumps(row, indent=2), "    "))
        before, after = ",", "\n  "
    write(f"{after}]\n}}\n")


def print_text(text: str) -> None:
    """Print one line to standard output; on a terminal, escape unprintable characters."""
    sys.stdout.write((printable(text) if sys.stdout.isatty() else text) + "\n")


def print_at_once(text: str) -> None:
    """Print one line and flush it, so that a pipe or a file receives it while the command runs."""
    print_text(text)
    sys.stdout.flush()


def print_recovery_key(text: str, remains: str) -> None:
    """Print and flush a text with a new recovery key, before the key is used.

    Args:
        text: one or more lines.
        remains: the state that remains if the key cannot be printed.

    Raises:
        UnprintedKeyError: the disk is full, standard output is closed, or its reader has exited.
    """
    try:
        print_at_once(text)
    except OSError as exc:
        raise UnprintedKeyError(exc.strerror or str(exc), remains) from exc


def print_table(rows: Mapping[str, str]) -> None:
    """Print a table with two columns: names and values.

    Only a terminal gets a long value in several lines; a program reads one line for each name.
    """
    from rich.console import Console  # imported late, because a daemon prints no tables

    table, console = table_of(rows), Console(markup=False, highlight=False)
    if console.is_terminal:
        console.print(table)
    else:
        _print_in_full(table, console)


def table_of(rows: Mapping[str, str]) -> "Table":
    """Return a table with two columns: names and values."""
    from rich.table import Table

    table = Table(show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(printable(name), printable(value))
    return table


def print_columns(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows as a table; all columns except the first contain numbers.

    A row is never truncated to the width of the terminal, because a truncated name could not be
    used in the next command.
    """
    from rich.console import Console

    _print_in_full(columns_of(columns, rows), Console(markup=False, highlight=False))


def columns_of(columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1) -> "Table":
    """Return rows as a table; the first *texts* columns contain text, all others numbers."""
    from rich.table import Table

    table = Table(box=None)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < texts else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def _print_in_full(table: "Table", console: "Console") -> None:
    """Print each row of a table in one line, even if it is wider than the console."""
    from rich.console import Console

    needed = console.measure(table, options=console.options.update(max_width=_COLUMNS_MAX))
    width = max(console.width, needed.maximum)
    Console(markup=False, highlight=False, width=width).print(table)


def human_number(value: float) -> str:
    """Return a number rounded to three significant digits, or to an integer if that is longer."""
    return f"{value:.3g}" if value < _THREE_DIGITS else f"{value:.0f}"


def human_bytes(size_bytes: float) -> str:
    """Return a size with a unit; the number is rounded as by ``human_number``."""
    for unit in _UNITS[:-1]:
        if size_bytes < _STEP:
            return f"{human_number(size_bytes)} {unit}" if unit != "B" else f"{size_bytes:.0f} B"
        size_bytes /= _STEP
    return f"{human_number(size_bytes)} {_UNITS[-1]}"


def human_duration(time_s: float) -> str:
    """Return a time span with a unit and two or three significant digits."""
    if time_s < _SECOND_IN_MS:
        return _small(time_s * 1e6, "µs") if time_s < _MS_IN_US else _small(time_s * 1e3, "ms")
    if time_s < _MINUTE_S:
        return f"{time_s:.2g} s" if time_s < _SHORT_S else f"{time_s:.0f} s"
    minutes = round(time_s / _MINUTE_S)
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours else f"{minutes} min"


def _small(value: float, unit: str) -> str:
    return f"{value:.0f} {unit}" if value >= _SHORT_S else f"{value:.2g} {unit}"


def human_time(time_ns: int) -> str:
    """Return a point in time as local time, with its UTC offset."""
    local_time = datetime.fromtimestamp(time_ns / 1e9, tz=timezone.utc).astimezone()
    return local_time.isoformat(sep=" ", timespec="seconds")
