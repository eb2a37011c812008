"""The benchmark page, which is generated only from the committed results."""

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from contrib.bench import __main__ as bench
from contrib.bench import page, plans, speed_table, targets, targets_page

ROOT: Final = Path(__file__).parents[2]
SUMMARY: Final = {"median": 12.5, "spread": 0.5, "values": [11.0, 12.5, 17.25]}
REPORT: Final = json.loads((ROOT / "docs/benchmarks/figures.json").read_text())
COMMITTED: Final = REPORT["benchmarks"]


def _report(**figures: Any) -> dict[str, Any]:
    return {
        "date": "2020-02-03T04:05:06+00:00",
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


def test_benchmark_page_shows_results_with_their_commands_and_host() -> None:
    """The benchmark page contains the machine, the date, and each result with its command.

    The page loads no other file.
    """
    made = page.render(_report(restore={"files": 1_000_000, "seconds": SUMMARY}), "figures.json")

    for wanted in (
        "files: 1,000,000", "seconds: 12.5", "python -m contrib.bench restore --rounds=3",
        "2020-02-03", "A &lt;fast&gt; one", "2 min 5 s", "1 min 2 s", "figures.json",
        "How it is measured.",
    ):  # fmt: skip
        assert wanted in made
    for loads in ("<script", "src=", "<link", "@import", 'href="http'):
        assert loads not in made  # The benchmark page loads no other file.


def test_benchmark_page_is_rendered_without_the_dependencies_of_s3fs_meta() -> None:
    """``make bench-page`` and ``make release`` create the page with only matplotlib installed."""
    command = [sys.executable, "-S", "-m", "contrib.bench.page", "--table"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("| seconds |")


def test_benchmark_page_shows_how_many_targets_are_met_and_missed() -> None:
    found = [targets.at_most("one", 3.0, 5.0, "ms"), targets.at_least("two", 0.4, 0.75)]

    made = page.render(_report(cut={"targets": found}), "figures.json")

    assert "1 met, 1 missed" in made
    assert "two: 0.4, wanted at least 0.75" in made


def test_benchmark_page_lists_unmeasured_filesystems_and_failed_benchmarks() -> None:
    report = _report(peers={"absent": ["JuiceFS"]})
    report["benchmarks"]["fsck"] = {
        "command": "fsck", "method": "", "seconds": 1.0, "error": "SubjectError: it <ended>",
    }  # fmt: skip

    made = page.render(report, "figures.json")

    assert "Absent, so not measured: JuiceFS" in made
    assert "SubjectError: it &lt;ended&gt;" in made


def test_benchmark_page_groups_records_with_equal_keys_in_a_table() -> None:
    """Benchmark records with the same keys form a group; records in a list are numbered."""
    lag: dict[str, dict[str, Any]] = {"a": {"x_ms": 1.0, "y": "z"}, "b": {"x_ms": 2.0}}
    figures = {"files": 3, "lag": lag, "turns": [{"s": 1}, {"s": 2}]}

    top, *below = page.groups(figures)

    assert top == page.Group("", {}, {"files": 3})
    assert below == [
        page.Group("lag", lag, {}),
        page.Group("turns", {"1": {"s": 1}, "2": {"s": 2}}, {}),
    ]
    assert below[0].keys == ["x_ms"]


def test_benchmark_chart_shows_a_dash_for_a_missing_value() -> None:
    pytest.importorskip("matplotlib", reason="the extra 'bench' is not installed")
    drawn = page.picture(page.Group("", {"a": {"s": 1.5}, "b": {"t": SUMMARY}}, {}), "salt")

    assert re.findall(r"font-size: 7px[^>]*>([^<]*)<", drawn) == ["1.5", "–", "–", "12.5"]


@pytest.mark.parametrize("name", plans.BENCHMARKS)
def test_every_benchmark_accepts_its_documented_options(name: str) -> None:
    """Each benchmark describes its method, and its run() accepts the documented options."""
    module = importlib.import_module(f"contrib.bench.{bench.MODULES.get(name, name)}")
    options = {*plans.BENCHMARKS[name], *bench.EXTRA.get(name, ())}
    _scratch, *parameters = inspect.signature(module.run).parameters

    assert inspect.getdoc(module)
    assert set(parameters) == options


def test_every_missed_benchmark_target_has_a_documented_reason() -> None:
    """The page docs/benchmarks/missed.md explains each missed target."""
    sections = (ROOT / "docs/benchmarks/missed.md").read_text().split("\nMissed ")
    unexplained = [
        (name, target["what"])
        for name, entry in COMMITTED.items()
        for target in entry["figures"].get("targets", ())
        if not target["met"]
        and not any(
            f"`{name}`" in section and target["what"].partition(":")[0] in section
            for section in sections
        )
    ]

    assert unexplained == []


def test_readme_shows_the_table_of_committed_benchmark_results() -> None:
    made = speed_table.table(COMMITTED["workloads"]["figures"])

    assert made.count("\n") > 20
    assert made in (ROOT / "README.md").read_text()


def test_page_of_targets_shows_the_committed_results() -> None:
    """The page docs/benchmarks/targets.md is made from the committed results."""
    made = targets_page.page(REPORT)

    assert made == (ROOT / "docs/benchmarks/targets.md").read_text()
    assert made.count("| met |") + made.count("| **missed** |") > 100


def test_readme_states_the_committed_ratios_to_juicefs() -> None:
    """The README gives the lowest and the highest ratio of all operations without content."""
    figures = COMMITTED["peers"]["figures"]
    ratios = [
        operation["speed against JuiceFS"]
        for clients in ("1 client", "4 clients")
        for name, operation in figures[clients].items()
        if "write" not in name
    ]

    stated = re.search(r"performs (\S+) to (\S+) times as many", (ROOT / "README.md").read_text())
    assert stated is not None
    assert len(ratios) == 14
    assert stated.groups() == (f"{min(ratios):.1f}", f"{max(ratios):.1f}")
