"""How long work reports how far it is."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with what is under way, how much is done, and of how much (same unit)."""


def no_progress(_what: str, _done: int, _total: int) -> None:
    """Show nothing."""
