"""The type of progress reports from long operations."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the name of the task, the amount done, and the total in the same unit."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Ignore a progress report from a long operation."""
