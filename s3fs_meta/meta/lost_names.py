"""Names for the directory lost+found, and for entries whose name may be in use.

Does not know: which inodes lost their names (``check.lost_found``, ``meta.offline.rebuild``).
"""

from collections.abc import Iterator
from typing import Final

from s3fs_meta.limits import LOST_NAME_ATTEMPTS_MAX, NAME_BYTES_MAX

LOST_FOUND: Final = b"lost+found"


def alternatives(wanted: bytes) -> Iterator[bytes]:
    """Yield a name, then ``name~1``, ``name~2`` and so on, of at most NAME_BYTES_MAX bytes."""
    yield wanted[:NAME_BYTES_MAX]
    for number in range(1, LOST_NAME_ATTEMPTS_MAX):
        ending = b"~%d" % number
        yield wanted[: NAME_BYTES_MAX - len(ending)] + ending
