"""Named moments in the order of writes, for tests that stop there.

Owns: the list of names. docs/design/durability.md has a table row for each; a test compares.
"""

from collections.abc import Callable
from typing import Final

Hook = Callable[[str], None]

STEPS: Final = (
    "blocks sealed",
    "pack intended",
    "pack put",
    "locations recorded",
    "image cut",
    "image copied",
    "image pieces put",
    "image attempt noted",
    "image manifest put",
    "lease head moved",
    "image confirmed",
    "packs condemned",
    "packs deleted",
)


def no_hook(step: str) -> None:
    """Do nothing: the hook of a real mount."""
