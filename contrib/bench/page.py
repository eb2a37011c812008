"""The page of the benchmarks: one HTML file, made from the JSON file of a run and nothing else.

    python -m contrib.bench page --from docs/benchmarks/figures.json --to docs/benchmarks/index.html

Plots are SVG inside it; nothing is loaded from elsewhere.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from contrib.bench import page_tables, plots
from contrib.bench.page_tables import Table
from contrib.bench.reasons import REASONS, Reason

HERE: Final = Path(__file__).parent
MINUTE_S: Final = 60

Report = Mapping[str, Any]
NamedTarget = tuple[str, Mapping[str, Any]]  # under the name of its benchmark
Reasons = Mapping[tuple[str, str], Reason]


def main(argv: Sequence[str]) -> int:
    """Read the JSON file, write the page."""
    parser = argparse.ArgumentParser(prog="python -m contrib.bench page", description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True, help="JSON of a run")
    parser.add_argument("--to", dest="target", type=Path, required=True, help="page to write")
    arguments = parser.parse_args(argv)
    write(arguments.source, arguments.target)
    return 0


def write(source: Path, target: Path) -> None:
    """Make the page *target* of the figures in *source*."""
    report = json.loads(source.read_text())
    target.write_text(render(report, source.name, REASONS))


def render(report: Report, json_name: str, reasons: Reasons) -> str:
    """Return the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    targets = _targets(report)
    missed = [(name, target) for name, target in targets if not target["met"]]
    return environment.get_template("page.html.j2").render(
        report=report,
        json_name=json_name,
        machine=_machine(report),
        sections=[_section(name, entry) for name, entry in report["benchmarks"].items()],
        targets=targets,
        met=len(targets) - len(missed),
        missed=missed,
        explained=_explained(missed, reasons),
        table=_table,
        number=page_tables.number,
        duration=_duration,
    )


def _targets(report: Report) -> list[NamedTarget]:
    return [
        (name, target)
        for name, entry in report["benchmarks"].items()
        for target in entry.get("figures", {}).get("targets", ())
    ]


def _explained(
    missed: Sequence[NamedTarget], reasons: Reasons
) -> list[tuple[Reason | None, list[NamedTarget]]]:
    """Return the reasons with what each explains; what has none comes first."""
    found: dict[Reason | None, list[NamedTarget]] = {None: []}
    for name, target in missed:
        found.setdefault(reasons.get((name, target["what"])), []).append((name, target))
    return [(reason, explains) for reason, explains in found.items() if explains]


def _section(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    figures = entry.get("figures", {})
    drawn = plots.plots(name, figures) if figures else []
    return {
        "name": name,
        "method": entry["method"],
        "command": entry["command"],
        "seconds": entry["seconds"],
        "date": entry.get("date"),
        "revision": entry.get("revision"),
        "error": entry.get("error"),
        "absent": figures.get("absent", ()),
        "targets": [(name, target) for target in figures.get("targets", ())],
        "tables": page_tables.tables(figures),
        "pictures": [
            Markup(plots.svg(plot, f"{name}-{number}")) for number, plot in enumerate(drawn)
        ],
    }


def _machine(report: Report) -> Table:
    facts = report["machine"]
    rows = [(page_tables.words(key), page_tables.text(key, each)) for key, each in facts.items()]
    return Table("Machine", ("", ""), rows)


def _table(table: Table) -> Markup:
    """Return a table as HTML; every cell is escaped."""
    head = Markup().join(Markup("<th>{}</th>").format(column) for column in table.columns)
    rows = Markup("\n").join(
        Markup("<tr>{}</tr>").format(
            Markup().join(Markup("<td>{}</td>").format(cell) for cell in row)
        )
        for row in table.rows
    )
    caption = Markup("<caption>{}</caption>").format(table.title) if table.title else Markup()
    return Markup("<table>{}<tr>{}</tr>\n{}</table>\n").format(caption, head, rows)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), MINUTE_S)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
