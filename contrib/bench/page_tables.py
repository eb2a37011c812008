"""Any benchmark's figures as tables of text, without knowing the benchmark.

A dictionary of equal records becomes a table with a row for each, or with a column for each if they
are long; what stands alone is gathered in a table of two columns; all else is entered. Single samples
stay in the JSON file.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

COLUMNS_MAX: Final = 10  # a longer record becomes a column, or is entered
# Shown elsewhere on the page.
APART: Final = frozenset({"targets", "absent", "met", "values", "ratio_of_turns"})
UNITS: Final = {
    "mib_s": "MiB/s",
    "mb_s": "MB/s",
    "per_s": "per second",
    "per_loop_cpu_s": "per second of the loop's processor time",
    "mib_per_tib": "MiB per TiB",
    "seconds": "s",
    "s": "s",
    "ms": "ms",
    "us": "µs",
}
UNIT_BYTES: Final = 1024


class Table(NamedTuple):
    """A heading, the names of the columns, and rows of as many texts."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(figures: Mapping[str, Any]) -> list[Table]:
    """Return everything in *figures* that a reader wants to see."""
    return list(_tables("", figures))


def _tables(title: str, value: Mapping[str, Any]) -> Iterator[Table]:
    shown = {key: each for key, each in value.items() if key not in APART}
    if len(shown) > 1 and (columns := _shared_columns(shown)):
        if len(columns) <= COLUMNS_MAX:
            yield _matrix(title, shown, columns)
            return
        if len(shown) <= COLUMNS_MAX and not any(map(_has_records, shown.values())):
            yield _turned(_matrix(title, shown, columns))
            return
    alone = {key: each for key, each in shown.items() if not _is_record(each)}
    facts = [(words(key), text(key, each)) for key, each in alone.items() if _is_plain(each)]
    if facts:
        yield Table(title, ("", "value"), facts)
    for key, each in shown.items():
        below = f"{title} · {words(key)}" if title else words(key)
        if _is_record(each):
            yield from _tables(below, each)
        elif _is_records(each):
            rows = {str(number): one for number, one in enumerate(each, start=1)}
            yield from _tables(below, rows)


def _matrix(title: str, records: Mapping[str, Any], columns: Sequence[str]) -> Table:
    rows = [
        (words(key), *(text(column, flat.get(column)) for column in columns))
        for key, flat in ((key, _flat(record)) for key, record in records.items())
    ]
    return Table(title, ("", *map(words, columns)), rows)


def _turned(table: Table) -> Table:
    """Return a table with rows and columns exchanged."""
    columns, *rows = zip(table.columns, *table.rows, strict=True)
    return Table(table.title, columns, rows)


def _shared_columns(records: Mapping[str, Any]) -> list[str]:
    """Return the columns of records that are alike; nothing if they are not."""
    if not all(_is_record(each) for each in records.values()):
        return []
    flats = [_flat(each) for each in records.values()]
    columns = list(dict.fromkeys(key for flat in flats for key in flat))
    alike = sum(map(len, flats)) * 2 > len(columns) * len(flats)
    return columns if alike else []


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the plain values of a record and of those in it, under joined names."""
    flat: dict[str, Any] = {}
    for key, each in record.items():
        if key in APART:
            continue
        if _is_record(each):
            flat |= _flat(each, f"{before}{key} · ")
        elif _is_plain(each):
            flat[f"{before}{key}"] = each
    return flat


def _is_record(value: object) -> bool:
    return isinstance(value, Mapping) and not _is_summary(value)


def _has_records(record: Mapping[str, Any]) -> bool:
    return any(map(_is_record, record.values()))


def _is_records(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_record, value))


def _is_summary(value: object) -> bool:
    return isinstance(value, Mapping) and "median" in value and "spread" in value


def _is_plain(value: object) -> bool:
    return _is_summary(value) or value is None or isinstance(value, str | int | float)


# --- words and numbers -------------------------------------------------------------------------


def words(key: str) -> str:
    """Return a key as a person says it, its unit behind a comma."""
    *before, last = key.split(" · ")
    name = last
    for ending, unit in UNITS.items():
        if last == ending and ending != "s":
            name = unit
            break
        if last.endswith(f"_{ending}"):
            name = f"{last.removesuffix(f'_{ending}')}, {unit}"
            break
    return " · ".join([*before, name]).replace("_", " ")


def text(key: str, value: Any) -> str:
    """Return a value as a person reads it; *key* tells what are bytes."""
    if value is None:
        return "–"
    if _is_summary(value):
        return f"{number(value['median'])} ± {value['spread'] / 2:.0%}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and _is_size(key):
        return size(value)
    return number(value) if isinstance(value, int | float) else str(value)


def _is_size(key: str) -> bool:
    last = key.rpartition(" · ")[2]
    return last.endswith("bytes") or last in {"resident", "resident_peak", "anonymous"}


def number(value: float) -> str:
    """Return three or four digits that count, with commas in what is large."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def size(value: float) -> str:
    """Return bytes in the largest unit that leaves at least one of it."""
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < UNIT_BYTES:
            return f"{value:.4g} {unit}"
        value /= UNIT_BYTES
    return f"{value:.4g} GiB"
