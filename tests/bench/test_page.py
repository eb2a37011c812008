"""The page of the benchmarks is made from their figures alone."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from contrib.bench import page, page_tables, plots, targets
from contrib.bench.catalogue import BENCHMARKS
from contrib.bench.reasons import Reason

ROOT: Final = Path(__file__).parents[2]
SUMMARY: Final = {"median": 12.5, "spread": 0.5, "values": [11.0, 12.5, 17.25]}

COMMITTED: Final = json.loads((ROOT / "docs/benchmarks/figures.json").read_text())["benchmarks"]


def _report(**figures: Any) -> dict[str, Any]:
    return {
        "date": "2020-02-03T04:05:06+00:00",
        "command": "python -m contrib.bench",
        "machine": {"processor": "A <fast> one", "memory_bytes": 24 << 30},
        "seconds": 125.0,
        "benchmarks": {
            name: {
                "command": f"python -m contrib.bench {name} --rounds=3",
                "method": "How it is measured.",
                "seconds": 62.0,
                "figures": each,
            }
            for name, each in figures.items()
        },
    }


def _restore() -> dict[str, Any]:
    return {"files": 1_000_000, "seconds": {"image alone": SUMMARY, "levels": SUMMARY}}


def test_page_has_the_figures_their_command_and_the_machine() -> None:
    """Every figure with the command that made it, on which machine, and when."""
    made = page.render(_report(restore=_restore()), "figures.json", {})

    for wanted in (
        "1,000,000",
        "12.5 ± 25%",
        "python -m contrib.bench restore --rounds=3",
        "2020-02-03",
        "A &lt;fast&gt; one",
        "24 GiB",
        "2 min 5 s",
        "1 min 2 s",
        "figures.json",
        "How it is measured.",
    ):
        assert wanted in made


def test_plots_are_inside_the_page_and_nothing_is_loaded() -> None:
    """One file, which can be sent and opened anywhere."""
    made = page.render(_report(restore=_restore()), "figures.json", {})

    assert made.count("<svg") == made.count("</svg>") == 1
    assert "Mount on a host that knows nothing" in made
    for loads in ("<script", "src=", "<link", "@import", 'href="http'):
        assert loads not in made


def test_targets_are_met_or_missed_with_the_reason() -> None:
    """A missed one is never silent: its reason, or that there is none yet."""
    found = [
        targets.at_most("one", 3.0, 5.0, "ms"),
        targets.at_least("two", 0.4, 0.75),
        targets.at_least("three", 0.5, 0.85),
    ]
    reasons = {("cut", "two"): Reason("The disk is slow.", "A faster one.")}

    made = page.render(_report(cut={"targets": found}), "figures.json", reasons)

    assert "1 met, 2 missed" in made
    assert "Why: The disk is slow." in made
    assert "Tried: A faster one." in made
    assert made.count("not known yet") == 1


def test_absent_peers_and_failures_are_told() -> None:
    """What was not measured is not guessed."""
    report = _report(peers={"absent": ["JuiceFS"]})
    report["benchmarks"]["fsck"] = {
        "command": "fsck",
        "method": "",
        "seconds": 1.0,
        "error": "SubjectError: it <ended>",
    }

    made = page.render(report, "figures.json", {})

    assert "Absent, so not measured: JuiceFS" in made
    assert "SubjectError: it &lt;ended&gt;" in made


def test_same_figures_give_the_same_page() -> None:
    """A page that is made again differs only where the figures do."""
    report = _report(restore=_restore())

    assert page.render(report, "f", {}) == page.render(report, "f", {})


def test_page_is_made_by_command_without_measuring(tmp_path: Path) -> None:
    """From one file to another."""
    source, target = tmp_path / "figures.json", tmp_path / "index.html"
    source.write_text(json.dumps(_report(restore=_restore())))

    words = ["-m", "contrib.bench", "page", "--from", str(source), "--to", str(target)]
    subprocess.run([sys.executable, *words], check=True, cwd=ROOT)

    assert "12.5 ± 25%" in target.read_text()


def test_records_that_are_alike_become_rows() -> None:
    """Others are entered, and what stands alone is gathered."""
    figures = {"files": 3, "lag": {"a": {"x_ms": 1.0, "y": True}, "b": {"x_ms": 2.0, "y": None}}}

    assert page_tables.tables(figures) == [
        page_tables.Table("", ("", "value"), [("files", "3")]),
        page_tables.Table("lag", ("", "x, ms", "y"), [("a", "1", "yes"), ("b", "2", "–")]),
    ]


def test_bars_leave_out_what_is_missing() -> None:
    """A peer without a figure has no bar, not one of zero."""
    drawn = plots.svg(plots.Bars("T", "s", ["a", "b"], {"ours": [1.5, None]}), "salt")

    assert re.findall(r"font-size: 7px[^>]*>([^<]*)<", drawn) == ["1.5"]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_how_it_measures(name: str) -> None:
    """The page shows it above the figures."""
    assert BENCHMARKS[name].method()


def test_long_records_become_columns() -> None:
    """A page is not as wide as it is long."""
    figures = {size: {f"k{number}": number for number in range(12)} for size in ("10", "20")}

    [table] = page_tables.tables(figures)

    assert table.columns == ("", "10", "20")
    assert list(table.rows)[3] == ("k3", "3", "3")
    assert len(table.rows) == 12


def test_growth_is_drawn_as_curves() -> None:
    """One for each step that was measured, through what is above nothing."""
    rows = {
        str(size): {"files": size, "create cpu": 9.5, "fsck cpu": 1.0, "rm": 3.0, "image cpu": -0.1}
        for size in (10**5, 10**6)
    }
    [plot] = plots.plots("scale", {"per_file": rows})
    drawn = plots.svg(plot, "salt")

    assert ">create<" in drawn
    assert ">fsck<" in drawn
    assert ">rm<" not in drawn
    assert ">image<" not in drawn


@pytest.mark.parametrize("name", sorted(plots.PLOTS.keys() & COMMITTED.keys()))
def test_committed_figures_are_drawn(name: str) -> None:
    """What a benchmark returns is what its plot wants."""
    assert plots.plots(name, COMMITTED[name]["figures"])
