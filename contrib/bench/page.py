"""Make the HTML page of the benchmarks from the JSON file of a run.

    make bench-page
    python -m contrib.bench page [--from docs/benchmarks/figures.json] [--to FILE]
    python -m contrib.bench page --table      (print the table in README)
    python -m contrib.bench page --targets    (write docs/benchmarks/targets.md)

The page has a picture for each table of results. A picture has a plot for each column, with a bar
for each row. Single results are shown as a list. The pictures need matplotlib (the extra "bench").
"""

import argparse
import importlib
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

from contrib.bench import speed_table, targets_page

PROJECT: Final = Path(__file__).parents[2]
SOURCE: Final = PROJECT / "docs" / "benchmarks" / "figures.json"
TARGET: Final = PROJECT / "build" / "benchmarks" / "index.html"
TARGETS: Final = PROJECT / "docs" / "benchmarks" / "targets.md"
HIDDEN: Final = frozenset({"targets", "absent", "values", "ratio_of_turns"})
PLOTS_WIDE: Final = 3
STYLE: Final = """body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; }
.method { white-space: pre-line; } .missed { color: #b00020; } svg { max-width: 100%; height: auto; }"""


class Group(NamedTuple):
    """One section of the page: its records by name, and its single values."""

    title: str
    records: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any]

    @property
    def keys(self) -> list[str]:
        """Return the keys with a number in at least one record, in their original order."""
        every = dict.fromkeys(key for record in self.records.values() for key in record)
        return [
            key for key in every if any(_is_number(each.get(key)) for each in self.records.values())
        ]


def groups(record: Mapping[str, Any], title: str = "") -> Iterator[Group]:
    """Yield the sections of a benchmark with all its results."""
    shown = {key: value for key, value in record.items() if key not in HIDDEN}
    for key, value in shown.items():
        if isinstance(value, list) and value and all(map(_is_record, value)):
            shown[key] = {str(number): each for number, each in enumerate(value, 1)}
    records = {key: value for key, value in shown.items() if _is_record(value)}
    facts = {key: value for key, value in shown.items() if key not in records}
    deep = [key for key, value in records.items() if any(map(_is_record, value.values()))]
    flat = {key: value for key, value in records.items() if key not in deep}
    yield Group(title, flat, facts)
    for key in deep:
        yield from groups(records[key], f"{title} · {key}" if title else key)


def _is_record(value: object) -> bool:
    """Return whether *value* is a record of results. A mapping with a median is a single value."""
    return isinstance(value, Mapping) and "median" not in value


def _median(value: Any) -> Any:
    return value["median"] if isinstance(value, Mapping) else value


def _is_number(value: object) -> bool:
    return isinstance(_median(value), int | float)


def number(value: float) -> str:
    """Format *value* with three significant digits, and large numbers with commas."""
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:.3g}"


def _fact(key: str, value: Any) -> str:
    text = number(_median(value)) if _is_number(value) else str(value)
    return f"<li>{escape(key)}: {escape(text)}</li>"


def _duration(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def picture(group: Group, salt: str) -> str:
    """Return a picture of the records as SVG; the same records and *salt* give the same SVG."""
    # Import matplotlib by name, so that type checks pass without it.
    mpl = importlib.import_module("matplotlib")
    figures = importlib.import_module("matplotlib.figure")
    lines = -(-len(group.keys) // PLOTS_WIDE)
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 8}):
        size = (11, lines * (0.7 + 0.22 * len(group.records)))
        figure = figures.Figure(figsize=size, layout="constrained")
        plots = [*figure.subplots(lines, PLOTS_WIDE, squeeze=False, sharey=True).flat]
        plots[0].invert_yaxis()  # This call inverts all plots, because they share the y axis.
        for key, axes in zip(group.keys, plots, strict=False):
            found = {name: _median(record.get(key)) for name, record in group.records.items()}
            drawn = axes.barh([*found], [value or 0 for value in found.values()])
            labels = [number(value) if _is_number(value) else "–" for value in found.values()]
            axes.bar_label(drawn, labels, padding=2, fontsize=7)
            axes.set_title(key, loc="left")
            axes.margins(x=0.2)
            axes.set_xticks([])
        for unused in plots[len(group.keys) :]:
            unused.remove()
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def render(report: Mapping[str, Any], json_name: str) -> str:
    """Return the HTML page of a report."""
    benchmarks: Mapping[str, Mapping[str, Any]] = report["benchmarks"]
    found = [
        each
        for entry in benchmarks.values()
        for each in entry.get("figures", {}).get("targets", ())
    ]
    met = sum(target["met"] for target in found)
    links = " ".join(f'<a href="#{name}">{name}</a>' for name in benchmarks)
    machine = "".join(_fact(key, value) for key, value in report["machine"].items())
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>s3fs-meta: benchmarks</title>
<style>{STYLE}</style></head><body>
<h1>s3fs-meta: benchmarks</h1>
<p>Measured on {escape(report["date"])} in {_duration(report["seconds"])}, made from {json_name}, which contains every sample.
All results are from one machine. Do not compare them with results from another machine.</p>
<ul>{machine}</ul><nav>{links}</nav>
<p>Targets: {met} met, {len(found) - met} missed; docs/benchmarks/missed.md explains why.</p>
{"".join(_section(name, entry) for name, entry in benchmarks.items())}
</body></html>
"""


def _section(name: str, entry: Mapping[str, Any]) -> str:
    figures = entry.get("figures", {})
    notes = [f"Absent, so not measured: {each}" for each in figures.get("absent", ())]
    notes += [f"The benchmark failed: {entry['error']}"] if "error" in entry else []
    parts = [f'<p class="missed">{escape(each)}</p>' for each in notes]
    parts += [_target(target) for target in figures.get("targets", ())]
    for group in groups(figures):
        parts += [f"<h3>{escape(group.title)}</h3>"] if group.title else []
        parts += [f"<ul>{''.join(_fact(*each) for each in group.facts.items())}</ul>"]
        parts += [picture(group, f"{name}-{group.title}")] if group.keys else []
    return f"""<h2 id="{name}">{name}</h2>
<p class="method">{escape(entry["method"])}</p>
<p><code>{escape(entry["command"])}</code>, {_duration(entry["seconds"])}, {entry.get("date")}, revision {entry.get("revision")}</p>
{"".join(parts)}"""


def _target(target: Mapping[str, Any]) -> str:
    kind, word = ("met", "met") if target["met"] else ("missed", "missed")
    values = f"{number(target['measured'])}, wanted {target['sense']} {number(target['wanted'])}"
    return f'<p class="{kind}">{escape(target["what"])}: {values} {target["unit"]}: {word}</p>'


def main(argv: Sequence[str]) -> int:
    """Read the JSON file, and write a page or print the table."""
    parser = argparse.ArgumentParser(prog="python -m contrib.bench page", description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, default=SOURCE, help="file to read")
    parser.add_argument("--to", dest="target", type=Path, default=TARGET, help="HTML page to write")
    parser.add_argument("--table", action="store_true", help="print the table for README instead")
    parser.add_argument("--targets", action="store_true", help=f"write {TARGETS.name} instead")
    arguments = parser.parse_args(argv)
    report = json.loads(arguments.source.read_text())
    if arguments.table:
        print(speed_table.table(report["benchmarks"]["workloads"]["figures"]), end="")
        return 0
    if arguments.targets:
        target, made = TARGETS, targets_page.page(report)
    else:
        target, made = arguments.target, render(report, arguments.source.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(made)
    print(f"written: {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
