"""The page of the benchmarks: one HTML file, made from the JSON file of a run and nothing else.

    make bench-page
    python -m contrib.bench page [--from docs/benchmarks/figures.json] [--to build/benchmarks/index.html]

A dictionary of similar records becomes a table with a row for each, a single value a row of a table
of facts. PLOTS names the columns that are drawn; matplotlib (the extra "bench") draws them as SVG
inside the page.
"""

import argparse
import importlib
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

PROJECT: Final = Path(__file__).parents[2]
SOURCE: Final = PROJECT / "docs" / "benchmarks" / "figures.json"
TARGET: Final = PROJECT / "build" / "benchmarks" / "index.html"
HIDDEN: Final = frozenset({"targets", "absent", "values", "ratio_of_turns"})
FILLED_MIN: Final = 0.5  # of the cells of a table: less is no table
COLUMNS_MAX: Final = 40
UNITS: Final = {"mib_s": "MiB/s", "mb_s": "MB/s", "per_s": "per second", "ms": "ms", "us": "µs"}
STYLE: Final = """body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #e4e4e4; text-align: right; }
th:first-child, td:first-child, caption { text-align: left; } caption { font-weight: bold; }
.method { white-space: pre-line; } .missed { color: #b00020; font-weight: bold; }
svg { max-width: 100%; height: auto; }"""


class Plot(NamedTuple):
    """Columns of one table, drawn as bars."""

    title: str
    table: str  # its title
    columns: str  # regular expression
    logarithmic: bool = False


PLOTS: Final[Mapping[str, Sequence[Plot]]] = {
    "metadata": (
        Plot("Speed against a do-nothing filesystem", "same loop · operations", r"ratio"),
        Plot("Processor time, µs per operation", "same loop · operations", r".* · cpu_us"),
    ),
    "peers": (
        Plot("1 client, µs per file", "1 client", r"[\w-]+, us", True),
        Plot("4 clients, µs per file", "4 clients", r"[\w-]+, us", True),
    ),
    "sequential": (Plot("Write, fsync and cached read, s", "phases", r".* · seconds"),),
    "random": (Plot("4 KiB, operations per second", "per second", r"s3fs-meta|do-nothing"),),
    "space": (Plot("Metadata of an empty file, bytes", "bytes_per_file", "value"),),
    "stall": (Plot("Answers while an image is made, ms", "", r"p\d+_ms|max_ms", True),),
    "follow": (Plot("Answers of a follower, ms", "answers", r"p\d+_ms|max_ms", True),),
    "trees": (Plot("Entries per second", "", r"\w+ · entries_per_s"),),
    "blocks": (
        Plot("Throughput by block size, MiB/s", "block_sizes", r"(write|ship|read)_mib_s"),
        Plot("A change and a cold read of 4 KiB, ms", "block_sizes", r"(change|cold_read)_ms"),
    ),
    "compression": (
        Plot("Content to stored", "methods", "ratio"),
        Plot("One core, MB/s", "methods", r".*_mb_s", True),
    ),
    "s3_small": (Plot("A small file to and from S3, ms", "subjects", r"(stored|read)_ms.*", True),),
    "s3_read": (
        Plot("A large file read in order, s", "sequential", "seconds"),
        Plot("4 KiB at a random position, ms", "random", "median_ms"),
    ),
    "journal_modes": tuple(
        Plot(f"{phase}, µs per file", phase, r"wall_us|processor, us", True)
        for phase in ("create", "find", "delete")
    ),
    "copy_trees": (Plot("A system tree, s", "seconds", r"copy|remove|until.*", True),),
    "database_pragmas": (
        Plot("One update, ms", "database on the mount: one update", r".*, ms", True),
        Plot("A name and its fsync, ms", "our own database", r".*, ms"),
        Plot("A change without fsync, µs", "our own database", r".*, us"),
    ),
    "sqlite_inserts": (Plot("One insert and fsync, ms", "milliseconds_per_insert", r".*", True),),
    "delete_many": (Plot("Files a second", "published, and here per second", r".*", True),),
    "scale": (Plot("Processor time, µs per file", "per_file", r".* cpu", True),),
}


class Table(NamedTuple):
    """Records by name."""

    title: str
    rows: Mapping[str, Mapping[str, Any]]

    @property
    def columns(self) -> list[str]:
        """Return every key of the records, in their order."""
        return list(dict.fromkeys(key for row in self.rows.values() for key in row))


def tables(record: Mapping[str, Any], title: str = "") -> Iterator[Table]:
    """Yield all figures of a benchmark as tables."""
    below = f"{title} · " if title else ""
    records: dict[str, Mapping[str, Any]] = {}
    facts: dict[str, dict[str, Any]] = {}
    for key, value in record.items():
        if key in HIDDEN:
            continue
        if _is_record(value):
            records[key] = value
        elif isinstance(value, list) and value and all(map(_is_record, value)):
            yield from tables({str(n): one for n, one in enumerate(value, 1)}, f"{below}{key}")
        else:
            facts[key] = {"value": value}
    if facts:
        yield Table(title, facts)
    similar = Table(title, {key: dict(_flat(value)) for key, value in records.items()})
    filled = sum(map(len, similar.rows.values())) / max(len(similar.columns) * len(records), 1)
    deep = max((key.count(" · ") for key in similar.columns), default=0) > 1
    wide = len(similar.columns) > COLUMNS_MAX
    if len(records) > 1 and filled > FILLED_MIN and not (deep or wide):
        yield similar
        return
    for key, value in records.items():
        yield from tables(value, f"{below}{key}")


def _is_record(value: object) -> bool:
    """Return whether it is a record and not the summary of one figure."""
    return isinstance(value, Mapping) and "median" not in value


def _flat(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in record.items():
        if key in HIDDEN:
            continue
        if _is_record(value):
            yield from _flat(value, f"{before}{key} · ")
        else:
            yield f"{before}{key}", value


# --- text --------------------------------------------------------------------------------------


def words(key: str) -> str:
    """Return a key in words, its unit after a comma."""
    for ending, unit in UNITS.items():
        if key.endswith(f"_{ending}"):
            key = f"{key.removesuffix(f'_{ending}')}, {unit}"
    return key.replace("_", " ")


def text(key: str, value: Any) -> str:
    """Return a value as text; sizes in bytes become MiB."""
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        spread = f" ± {value['spread'] / 2:.0%}" if "spread" in value else ""
        return number(value["median"]) + spread
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) and re.search(r"(bytes|resident|resident_peak|anonymous)$", key):
        return f"{number(value / (1 << 20))} MiB" if value >= 1 << 20 else f"{value:,} B"
    return number(value)


def number(value: float) -> str:
    """Return three significant digits, with commas in large numbers."""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"


def _duration(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


# --- HTML --------------------------------------------------------------------------------------


def render(report: Mapping[str, Any], json_name: str) -> str:
    """Return the page."""
    benchmarks: Mapping[str, Mapping[str, Any]] = report["benchmarks"]
    targets = {
        name: entry.get("figures", {}).get("targets", ()) for name, entry in benchmarks.items()
    }
    met = [target["met"] for found in targets.values() for target in found]
    links = " ".join(f'<a href="#{name}">{name}</a>' for name in benchmarks)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>s3fs-meta: benchmarks</title>
<style>{STYLE}</style></head><body>
<h1>s3fs-meta: benchmarks</h1>
<p>Measured on {escape(report["date"])} in {_duration(report["seconds"])}, made from {json_name}, which has every sample.
Every figure belongs to one machine: compare figures that stand side by side, not those of two machines.
± is half the distance between the smallest and the largest sample, relative to the median.</p>
{_html(Table("Machine", {key: {"value": value} for key, value in report["machine"].items()}))}
<nav>{links}</nav>
<h2>Targets</h2><p>{met.count(True)} met, {met.count(False)} missed.
docs/benchmarks/missed.md has the reasons.</p>
{"".join(_targets(name, found) for name, found in targets.items() if found)}
{"".join(_section(name, entry, targets[name]) for name, entry in benchmarks.items())}
</body></html>
"""


def _section(name: str, entry: Mapping[str, Any], targets: Sequence[Mapping[str, Any]]) -> str:
    figures = entry.get("figures", {})
    found = list(tables(figures))
    absent = [f"Absent, so not measured: {each}" for each in figures.get("absent", ())]
    failed = [f"It failed: {entry['error']}"] if "error" in entry else []
    return f"""<h2 id="{name}">{name}</h2>
<p class="method">{escape(entry["method"])}</p>
<p><code>{escape(entry["command"])}</code>, {_duration(entry["seconds"])}, {entry.get("date")}, revision {entry.get("revision")}</p>
{"".join(f'<p class="missed">{escape(each)}</p>' for each in [*absent, *failed])}
{_targets("", targets) if targets else ""}
{"".join(f"<figure>{picture}</figure>" for picture in pictures(name, found))}
{"".join(map(_html, found))}"""


def _targets(title: str, targets: Sequence[Mapping[str, Any]]) -> str:
    rows = {
        target["what"]: {
            "measured": f"{number(target['measured'])} {target['unit']}",
            "wanted": f"{target['sense']} {number(target['wanted'])} {target['unit']}",
            "": "met" if target["met"] else "missed",
        }
        for target in targets
    }
    return _html(Table(title, rows))


def _html(table: Table) -> str:
    head = "".join(f"<th>{escape(words(each))}</th>" for each in ("", *table.columns))
    rows = "\n".join(
        f"<tr><td>{escape(words(name))}</td>"
        + "".join(
            f"<td>{escape(text(name if key == 'value' else key, row.get(key)))}</td>"
            for key in table.columns
        )
        + "</tr>"
        for name, row in table.rows.items()
    )
    return (
        f"<table><caption>{escape(words(table.title))}</caption><tr>{head}</tr>\n{rows}</table>\n"
    )


def pictures(name: str, found: Sequence[Table]) -> Iterator[str]:
    """Yield the plots of a benchmark as SVG."""
    for count, plot in enumerate(PLOTS.get(name, ())):
        for table in found:
            if found_columns := columns(plot, table):
                yield _svg(plot, table, found_columns, salt=f"{name}-{count}")


def columns(plot: Plot, table: Table) -> list[str]:
    """Return the columns of *table* that *plot* draws."""
    if table.title != plot.table:
        return []
    return [each for each in table.columns if re.fullmatch(plot.columns, each)]


def _svg(plot: Plot, table: Table, drawn_columns: Sequence[str], salt: str) -> str:
    """Draw bars; a missing value has none. The same figures and *salt* give the same text."""
    mpl = importlib.import_module("matplotlib")  # by name: type checks pass without the extra
    figures = importlib.import_module("matplotlib.figure")
    thick = 0.8 / len(drawn_columns)
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 9}):
        height = 1.1 + 0.2 * len(table.rows) * (len(drawn_columns) + 0.6)
        figure = figures.Figure(figsize=(8, height), layout="constrained")
        axes = figure.subplots()
        for which, column in enumerate(drawn_columns):
            bars = [
                (
                    row + which * thick - 0.4,
                    value["median"] if isinstance(value, Mapping) else value,
                )
                for row, record in enumerate(table.rows.values())
                if (value := record.get(column)) is not None
            ]
            drawn = axes.barh(*zip(*bars, strict=True), thick, align="edge", label=words(column))
            axes.bar_label(drawn, fmt=number, padding=2, fontsize=7)
        axes.set_yticks(range(len(table.rows)), table.rows)
        axes.invert_yaxis()
        axes.margins(x=0.1)
        axes.set_xscale("log" if plot.logarithmic else "linear")
        axes.set_title(plot.title, loc="left", fontweight="bold")
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def main(argv: Sequence[str]) -> int:
    """Read the JSON file, write the page."""
    parser = argparse.ArgumentParser(prog="python -m contrib.bench page", description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, default=SOURCE, help="JSON of a run")
    parser.add_argument("--to", dest="target", type=Path, default=TARGET, help="page to write")
    arguments = parser.parse_args(argv)
    arguments.target.parent.mkdir(parents=True, exist_ok=True)
    arguments.target.write_text(
        render(json.loads(arguments.source.read_text()), arguments.source.name)
    )
    print(f"written: {arguments.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
