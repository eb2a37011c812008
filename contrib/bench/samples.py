"""Repeated measurements, and the comparison of two series."""

import statistics
from collections.abc import Sequence


def summary(values: Sequence[float]) -> dict[str, object]:
    """Return median, spread (largest minus smallest, as a part of the median) and the values."""
    median = statistics.median(values)
    return {
        "median": median,
        "spread": (max(values) - min(values)) / median if median else 0.0,
        "values": list(values),
    }


def ratio(ceiling_s: Sequence[float], subject_s: Sequence[float]) -> float:
    """Return the subject's speed relative to the baseline: 1 is as fast, 0.5 is half."""
    return statistics.median(ceiling_s) / statistics.median(subject_s)
