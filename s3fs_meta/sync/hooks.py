"""Names of the steps between writes; tests stop or crash the program at these steps.

Owns: the list of names. docs/design/durability.md has a table row for each name; a test
checks this.
"""

from collections.abc import Callable
from typing import Final

Hook = Callable[[str], None]

STEPS: Final = (
    "blocks sealed",
    "pack intended",
    "pack put",
    "locations recorded",
    "txg cut",
    "txg uploaded",
    "changelog parts put",
    "txg attempted",
    "changelog put",
    "lease read",
    "txg confirmed",
    "image copied",
    "image pieces put",
    "image attempt noted",
    "image manifest put",
    "lease head moved",
    "image confirmed",
    "packs condemned",
    "packs deleted",
    "packs forgotten",
    "manifests deleted",
    "pieces deleted",
    "changelogs deleted",
    "levels deleted",
    "history deleted",
    "level put",
    "history put",
)

# The steps of a mount for writing before it serves. Only a promotion has the last step.
TAKEOVER_STEPS: Final = (
    "nonce noted",
    "lease taken",
    "epoch noted",
    "fence attempted",
    "fence put",
    "fence confirmed",
    "totals settled",
)

# The steps of a rollback. Between the first two are the steps of a txg of kind IMAGE.
ROLLBACK_STEPS: Final = (
    "past restored",
    "past published",
    "present dropped",
    "past in place",
)

# The steps of a change of the superblock. mkfs has the first two, as has a mount that stores a
# missing copy again.
SUPERBLOCK_STEPS: Final = (
    "superblock put",
    "superblock copy put",
    "superblock remembered",
)

# The steps of the command destroy.
REMOVAL_STEPS: Final = (
    "removal prepared",
    "removal noted",
    "objects removed",
    "keys removed",
    "superblock removed",
)


def no_hook(step: str) -> None:
    """Do nothing; the hook of a real mount."""
