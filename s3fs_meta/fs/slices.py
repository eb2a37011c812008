"""The size limits of slices: long work on the event loop is done in slices.

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
    WALK_SLICE_BLOCKS,
)


@dataclass(frozen=True)
class Slices:
    """The maximum work of each kind between two schedule points."""

    purged_blocks: int = (
        PURGE_BLOCKS_MAX  # blocks released by a truncation, punched hole or removal
    )
    names: int = TREE_SLICE_NAMES  # names removed, locked or listed
    # directories of which names are removed, locked or listed
    directories: int = TREE_SLICE_DIRECTORIES
    walked_blocks: int = WALK_SLICE_BLOCKS  # blocks of files listed
    cloned_names: int = CLONE_SLICE_NAMES
    shared_blocks: int = CLONE_SLICE_BLOCKS  # blocks shared by cloning or copying files
    cloned_indexes: int = LOOP_SLICE_ROWS  # block positions cloned of a file with dirty blocks
    cloned_bytes: int = CLONE_COPIED_BYTES  # bytes of dirty blocks copied by a clone
    copied_bytes: int = COPIED_RANGE_BYTES  # bytes written by one copy_file_range(2)


DEFAULT_SLICES: Final = Slices()
