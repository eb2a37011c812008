"""Targets of results: a minimum or maximum, and whether the result meets it."""

from collections.abc import Iterable
from typing import Any

Target = dict[str, Any]


def at_least(what: str, measured: float, wanted: float, unit: str = "") -> Target:
    """Return a target that is met if *measured* is at least *wanted*."""
    return _target(what, measured, "at least", wanted, unit, met=measured >= wanted)


def at_most(what: str, measured: float, wanted: float, unit: str = "") -> Target:
    """Return a target that is met if *measured* is at most *wanted*."""
    return _target(what, measured, "at most", wanted, unit, met=measured <= wanted)


def all_met(targets: Iterable[Target]) -> bool:
    """Return whether all targets are met."""
    return all(target["met"] for target in targets)


def _target(
    what: str, measured: float, sense: str, wanted: float, unit: str, *, met: bool
) -> Target:
    return {
        "what": what,
        "measured": measured,
        "sense": sense,
        "wanted": wanted,
        "unit": unit,
        "met": met,
    }
