"""The bounds of the slices into which long work on the event loop is cut.

Design: docs/design/concurrency.md, "Slices".
"""

from dataclasses import dataclass
from typing import Final

from s3fs_meta.limits import (
    CLONE_COPIED_BYTES,
    CLONE_SLICE_BLOCKS,
    CLONE_SLICE_NAMES,
    COPIED_RANGE_BYTES,
    LOOP_SLICE_ROWS,
    PURGE_BLOCKS_MAX,
    TREE_SLICE_DIRECTORIES,
    TREE_SLICE_NAMES,
)


@dataclass(frozen=True)
class Slices:
    """How much is done between two schedule points."""

    purged_blocks: int = PURGE_BLOCKS_MAX  # released by a truncation, a punched hole, a removal
    names: int = TREE_SLICE_NAMES  # removed or locked
    directories: int = TREE_SLICE_DIRECTORIES  # of one tree, that these names may be in
    cloned_names: int = CLONE_SLICE_NAMES
    shared_blocks: int = CLONE_SLICE_BLOCKS  # of files that are cloned or copied
    cloned_indexes: int = LOOP_SLICE_ROWS  # of a file with dirty content
    cloned_bytes: int = CLONE_COPIED_BYTES
    copied_bytes: int = COPIED_RANGE_BYTES  # by one copy_file_range(2)


DEFAULT_SLICES: Final = Slices()
