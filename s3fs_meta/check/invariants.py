"""The table of invariants, in the order in which they are repaired.

Owns: the order. What each says, and how it is repaired, stands in ``rules``, by noun.
docs/design/invariants.md explains each: who keeps it, who checks it, who attacks it.

Order: what others rely on comes first (pages, tables, numbers), then what has lost its place is
given one, then data, then everything that is computed from other rows. A repair may break what
comes after it, and only that; what comes before is seen in the next round.
"""

from typing import Final

from s3fs_meta.check.context import Invariant
from s3fs_meta.check.rules.attributes import ATTRIBUTES, TARGET_SIZES
from s3fs_meta.check.rules.blocks import BLOCKS, REFERENCES
from s3fs_meta.check.rules.bucket import BUCKET, CHAIN, CONTENT
from s3fs_meta.check.rules.cache import CACHE_FILES, CACHE_ROWS, COPIES
from s3fs_meta.check.rules.database import NUMBERS, SQLITE, TOTALS, TYPES
from s3fs_meta.check.rules.files import FILES, MAPPED
from s3fs_meta.check.rules.inodes import FLAGS, INODES, ORPHANS, TREES
from s3fs_meta.check.rules.names import LINKS, NAMES
from s3fs_meta.check.rules.packs import LIVES, PACKS

# The other queries would fail or give wrong results without these.
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
    *LINKS,
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
)

assert [one.number for one in INVARIANTS] == list(range(1, len(INVARIANTS) + 1)), (
    "invariants are numbered in the order in which they are repaired"
)
