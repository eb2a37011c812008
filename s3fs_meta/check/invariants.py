"""The ordered table of invariants; the invariants in FOUNDATION are repaired before all others.

Owns: the order of repairs. The invariants are defined in the modules of ``rules``, by subject.
docs/design/invariants.md lists, for each invariant, the code that maintains it and the tests that
try to break it.

Order: first the invariants that all others rely on (pages, tables, numbers). Then repairs that put
lost rows into the tree, then data, then values that are computed from other rows. The last groups
may be in any order. A repair should break only later invariants; ``fsck`` repeats all repairs until
no repairable invariant is broken.
"""

from typing import Final

from s3fs_meta.check.context import Invariant
from s3fs_meta.check.rules.attributes import ATTRIBUTES, TARGET_SIZES
from s3fs_meta.check.rules.blocks import BLOCKS, REFERENCES
from s3fs_meta.check.rules.bucket import BUCKET, CHAIN, CONTENT, HISTORY, KEPT
from s3fs_meta.check.rules.cache import CACHE_FILES, CACHE_ROWS, COPIES
from s3fs_meta.check.rules.database import NUMBERS, SQLITE, TOTALS, TYPES
from s3fs_meta.check.rules.files import FILES, MAPPED
from s3fs_meta.check.rules.inodes import FLAGS, INODES, ORPHANS, TREES
from s3fs_meta.check.rules.link_counts import LINK_COUNTS
from s3fs_meta.check.rules.names import NAMES
from s3fs_meta.check.rules.packs import LIVES, PACKS

# Invariants on which all other queries rely: if one is broken, these queries give wrong results.
FOUNDATION: Final[tuple[Invariant, ...]] = (*SQLITE, *NUMBERS[:1], *TYPES)

INVARIANTS: Final[tuple[Invariant, ...]] = (
    *SQLITE,
    *NUMBERS,
    *INODES,
    *ATTRIBUTES,
    *NAMES,
    *ORPHANS,
    *FILES,
    *BLOCKS,
    *PACKS,
    *CACHE_ROWS,
    *CACHE_FILES,
    *BUCKET,
    *CONTENT,
    *LINK_COUNTS,
    *TARGET_SIZES,
    *FLAGS,
    *MAPPED,
    *REFERENCES,
    *LIVES,
    *TOTALS,
    *COPIES,
    *CHAIN,
    *TREES,
    *TYPES,
    *HISTORY,
    *KEPT,
)

assert [one.number for one in INVARIANTS] == list(range(1, len(INVARIANTS) + 1)), (
    "invariants are numbered in the order in which they are repaired"
)
