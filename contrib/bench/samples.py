"""Statistics of repeated measurements: medians, spreads, percentiles and ratios."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """Return *items* rotated by *turn*, so that successive turns begin with different items."""
    first = turn % len(items)
    return [*items[first:], *items[:first]]


def full_turns(files: int, turn_files: int) -> int:
    """Return how many full turns of *turn_files* files fit into *files* files, at least 1."""
    return max(files // turn_files, 1)


def summary(values: Sequence[float]) -> dict[str, object]:
    """Return the median, the spread ((largest - smallest) / median) and the values."""
    median = statistics.median(values)
    return {
        "median": median,
        "spread": (max(values) - min(values)) / median if median else 0.0,
        "values": list(values),
    }


def latencies(taken: Sequence[float]) -> dict[str, float]:
    """Return median, 99th and 99.9th percentile and maximum of *taken*, in milliseconds."""
    ordered = sorted(taken)
    parts = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1}
    return {
        "answers": len(ordered),
        **{
            name: ordered[min(int(len(ordered) * part), len(ordered) - 1)] * 1e3
            for name, part in parts.items()
        },
    }


def seconds(work: Callable[[], object]) -> float:
    """Call *work*; return its duration in seconds."""
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def ratio(ceiling_s: Sequence[float], subject_s: Sequence[float]) -> float:
    """Return the speed of the subject relative to the ceiling; 0.5 means half as fast."""
    return statistics.median(ceiling_s) / statistics.median(subject_s)
