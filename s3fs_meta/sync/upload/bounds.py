"""The size limits of the batches and objects that one mount or command uploads.

Design: docs/design/durability.md, "From dirty to uploaded" and "From cut to chain".
"""

from dataclasses import dataclass
from typing import Final

from s3fs_meta.limits import (
    CHANGELOG_LOCATIONS_MAX,
    CHANGELOG_RUN_BYTES,
    IMAGE_WAL_BYTES_MAX,
    PACK_BYTES_TARGET,
    SEAL_AGE_S,
    SEAL_BATCH_BLOCKS_MAX,
    SEAL_BATCH_BYTES,
    SEAL_LINGER_S,
)


@dataclass(frozen=True)
class UploadBounds:
    """The age at which blocks are sealed, the limits of batches and changelogs, and of retries."""

    seal_age_s: float = SEAL_AGE_S
    seal_linger_s: float = SEAL_LINGER_S
    pack_bytes: int = PACK_BYTES_TARGET  # size at which a pack counts as full
    batch_bytes: int = SEAL_BATCH_BYTES  # maximum size of the blocks in a batch
    batch_blocks: int = SEAL_BATCH_BLOCKS_MAX
    run_bytes: int = CHANGELOG_RUN_BYTES  # maximum size of the changes in one changelog object
    # maximum number of block locations in one changelog object
    locations: int = CHANGELOG_LOCATIONS_MAX
    # maximum WAL growth during the upload of an image's blocks
    image_wal_bytes: int = IMAGE_WAL_BYTES_MAX
    # True if a pack that the store has refused or not confirmed is uploaded again, without limit.
    # The store's own retries of a request are bounded and happen in any case.
    repeats_packs: bool = True


DEFAULT_BOUNDS: Final = UploadBounds()
# The bounds of a command, which must end even if the bucket stays full. The next one continues.
COMMAND_BOUNDS: Final = UploadBounds(repeats_packs=False)
