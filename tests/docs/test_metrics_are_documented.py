"""Tests that all statistics of a mount are documented."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Place
from tests.programs import Program

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"

# The rest of a key with one of these prefixes is data, such as the cause of a request.
PLURAL = {
    "store.": "<method>",
    "billed.": "<cause>",
    "billed.<cause>.": "<class>",
    "requests.": "<kind>",
    "latency.operations.": "<operation>",
}


def _names(figures: dict[str, Any], before: str = "") -> set[str]:
    found = set()
    for key, value in figures.items():
        if isinstance(value, dict):
            inner = before + PLURAL.get(before, key) + "."
            found |= _names(value, inner)
        else:
            found.add(before + PLURAL.get(before, key))
    return found


def _table(page: str) -> set[str]:
    """Return the names in the first column of the page's tables."""
    table = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    return set(re.findall(r"`([^`]+)`", table))


@pytest.mark.mount
def test_metrics_page_lists_exactly_the_fields_of_status(program: Program, mounted: Place) -> None:
    page, _, _ = PAGE.read_text().partition("## Prometheus")

    assert _table(page) == _names(program.status(mounted.mountpoint))


@pytest.mark.mount
def test_metrics_page_lists_exactly_the_prometheus_metrics(
    program: Program, mounted: Place
) -> None:
    _, _, page = PAGE.read_text().partition("## Prometheus")

    metrics = program.ok("status", "--prometheus", mounted.mountpoint)

    assert _table(page) == set(re.findall(r"^# TYPE (\S+)", metrics, re.MULTILINE))
