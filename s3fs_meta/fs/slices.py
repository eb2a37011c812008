"""The size limits of slices: long work on the event loop is divided into slices.

Design: docs/design/concurrency.md, "Slices".
"""

from dataclasses import dataclass
from typing import Final

from s3fs_meta.limits import (
    ANCESTORS_SLICE,
    CLONE_COPIED_BYTES,
    CLONE_SLICE_BLOCKS,
    CLONE_SLICE_NAMES,
    COPIED_RANGE_BYTES,
    LOOP_SLICE_ROWS,
    PURGE_BLOCKS_MAX,
    TREE_SLICE_DIRECTORIES,
    TREE_SLICE_NAMES,
    WALK_SLICE_BLOCKS,
)


@dataclass(frozen=True)
class Slices:
    """The maximum amount of work of each kind between two schedule points."""

    # Number of blocks that a truncation, a punched hole or a removal releases in one slice.
    purged_blocks: int = PURGE_BLOCKS_MAX
    names: int = TREE_SLICE_NAMES  # number of names to remove, lock or list in one slice
    # Number of directories whose names are removed, locked or listed in one slice.
    directories: int = TREE_SLICE_DIRECTORIES
    walked_blocks: int = WALK_SLICE_BLOCKS  # number of blocks to list in one slice
    cloned_names: int = CLONE_SLICE_NAMES
    shared_blocks: int = CLONE_SLICE_BLOCKS  # number of blocks that a copy shares in one slice
    # Number of block map entries that a clone copies in one slice from a file with dirty blocks.
    cloned_indexes: int = LOOP_SLICE_ROWS
    cloned_bytes: int = CLONE_COPIED_BYTES  # dirty bytes that a clone copies in one slice
    ancestors: int = ANCESTORS_SLICE  # number of parent directories that one slice visits
    copied_bytes: int = COPIED_RANGE_BYTES  # bytes that copy_file_range(2) writes in one slice


DEFAULT_SLICES: Final = Slices()
