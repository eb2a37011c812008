"""Tests that the Grafana dashboard and its alert rules use only existing metrics of a mount."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import Place
from tests.programs import Program

FOLDER = Path(__file__).parents[2] / "contrib" / "grafana"
METRIC = re.compile(r"\b(s3fs_meta_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\bby \(([^)]*)\)")
ADDED_BY_PROMETHEUS = {"instance", "le"}


def _dashboard() -> dict[str, Any]:
    found = json.loads((FOLDER / "s3fs-meta.json").read_text())
    assert isinstance(found, dict)
    return found


def _expressions() -> Iterator[str]:
    """Yield the expressions of the panels, the variables and the alert rules."""
    made = _dashboard()
    for panel in made["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in made["templating"]["list"]:
        yield variable.get("definition", "")
    rules = re.findall(r"^ *expr: (.*)$", (FOLDER / "README.md").read_text(), re.MULTILINE)
    assert rules
    yield from rules


def _real(page: str) -> dict[str, set[str]]:
    """Return the labels of each metric; a metric without samples has only ``mountpoint``."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        total = "_total" if family.type == "counter" else ""
        found.setdefault(family.name + total, {"mountpoint"})
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.mount
def test_grafana_dashboard_uses_only_existing_metrics_and_labels(
    program: Program, mounted: Place
) -> None:
    (mounted.mountpoint / "f").write_bytes(b"x")
    real = _real(program.ok("status", "--prometheus", mounted.mountpoint))

    used = 0
    for expression in _expressions():
        for name, matchers in METRIC.findall(expression):
            used += 1
            assert name in real, expression
            grouped = ",".join(GROUPED.findall(expression)).replace(" ", "").split(",")
            labels = {*re.findall(r"(\w+)=", matchers), *filter(None, grouped)}
            assert labels <= real[name] | ADDED_BY_PROMETHEUS, expression
    assert used > 30


def test_dashboard_panels_have_unique_ids_and_do_not_overlap() -> None:
    """Grafana drops panels with the same number, and draws overlapping panels over each other."""
    panels = _dashboard()["panels"]
    places = [
        (x, y)
        for panel in panels
        for at in [panel["gridPos"]]
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24
    for panel in panels:
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
        assert panel["type"] == "row" or panel["fieldConfig"]["defaults"]["unit"]


def test_every_variable_used_in_the_dashboard_is_defined() -> None:
    defined = {one["name"] for one in _dashboard()["templating"]["list"]}
    builtin = {"__rate_interval", "__all"}

    used = set(re.findall(r"\$\{?(\w+)", (FOLDER / "s3fs-meta.json").read_text()))

    assert used <= defined | builtin
    assert defined <= used | {"datasource"}
