"""The page of all targets, made from saved results: ``docs/benchmarks/targets.md``.

``python -m contrib.bench page --targets`` writes the page. A test compares it with the results.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from contrib.bench.names import CEILING, DISK, JUICEFS, OURS, PASSTHROUGH, S3QL, USED
from contrib.bench.speed_table import rounded, row, seconds_table

SUBJECTS: Final = (DISK, PASSTHROUGH, CEILING, OURS, USED, JUICEFS, S3QL)
INTRODUCTION: Final = """# Targets

<!-- Generated from figures.json by `python -m contrib.bench page --targets`. -->

The results of all targets in [figures.json](figures.json), for each benchmark.
[Missed targets](missed.md) explains why targets are missed, and the terms on this page.

All results are from one machine. Do not compare them with results from another machine.
"""


def page(report: Mapping[str, Any]) -> str:
    """Return the page of a report, as Markdown."""
    return "\n".join([INTRODUCTION, *_machine(report), "", *_sections(report["benchmarks"])])


def _machine(report: Mapping[str, Any]) -> Iterator[str]:
    yield f"- run: {report['date']}, {report['seconds'] / 60:.0f} minutes, `{report['command']}`"
    for key, value in report["machine"].items():
        yield f"- {key.replace('_', ' ')}: {value}"
    found = [target for entry in report["benchmarks"].values() for target in _targets(entry)]
    met = sum(target["met"] for target in found)
    yield f"- targets: {met} met, {len(found) - met} missed"


def _sections(benchmarks: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, entry in benchmarks.items():
        targets = _targets(entry)
        if not targets:
            continue
        yield f"## {name}\n"
        yield f"`{entry['command']}`, {entry['date']}, revision {entry['revision']}\n"
        yield row("measurement", ("result", "target", ""))
        yield row("---", ("---:", "---:", "---"))
        for target in targets:
            yield _target_row(target)
        yield ""
        if "processor_seconds" in entry["figures"]:
            yield "Medians in seconds:\n"
            yield seconds_table(entry["figures"]["seconds"], SUBJECTS)
            yield "CPU time of the daemon in seconds:\n"
            yield seconds_table(entry["figures"]["processor_seconds"], SUBJECTS)


def _targets(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(entry.get("figures", {}).get("targets", ()))


def _target_row(target: Mapping[str, Any]) -> str:
    unit = {"": "", "times": "×", "us": " µs"}.get(target["unit"], f" {target['unit']}")
    result, wanted = (rounded(target[key], 3) + unit for key in ("measured", "wanted"))
    verdict = "met" if target["met"] else "**missed**"
    return row(target["what"], (result, f"{target['sense']} {wanted}", verdict))
