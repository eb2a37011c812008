"""Targets of results: a minimum or maximum, and whether the result meets it."""

from typing import Any

Target = dict[str, Any]


def at_least(what: str, measured: float, wanted: float, unit: str = "") -> Target:
    """Return a target that is met if *measured* is at least *wanted*."""
    return _target(what, measured, "at least", wanted, unit, met=measured >= wanted)


def at_most(what: str, measured: float, wanted: float, unit: str = "") -> Target:
    """Return a target that is met if *measured* is at most *wanted*."""
    return _target(what, measured, "at most", wanted, unit, met=measured <= wanted)


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
