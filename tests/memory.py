"""The peak memory use of a piece of code."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Yield a function that returns, after the context, Python's peak allocations in bytes."""
    peaks: list[int] = []
    tracemalloc.start()
    try:
        yield lambda: peaks[0]
    finally:
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
