"""Names of the steps between writes; tests stop or crash the program at these steps.

Owns: the list of names. A test checks that docs/design/durability.md describes each step.
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

# Steps of a mount that becomes the writer; only a promotion runs the last step.
TAKEOVER_STEPS: Final = (
    "nonce noted",
    "lease taken",
    "epoch noted",
    "fence attempted",
    "fence put",
    "fence confirmed",
    "totals settled",
)

# Steps of a rollback. Between the first two, an image is uploaded with its own steps.
ROLLBACK_STEPS: Final = (
    "past restored",
    "past published",
    "present dropped",
    "past in place",
)

# Steps of a superblock change; mkfs runs only the first two.
# A mount that restores a missing superblock object also runs only the first two steps.
SUPERBLOCK_STEPS: Final = (
    "superblock put",
    "superblock copy put",
    "superblock remembered",
)

# Steps of the command "destroy".
REMOVAL_STEPS: Final = (
    "removal prepared",
    "removal noted",
    "objects removed",
    "keys removed",
    "superblock removed",
)


def no_hook(step: str) -> None:
    """Do nothing; this function is the hook outside of tests."""
