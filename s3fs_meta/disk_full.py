"""The errnos of writes that fail because a local disk is full.

Owns: the sets of errnos. Does not know: the effect of a full disk on a request.
Source: write(2).
"""

import errno
from typing import Final

FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

# Errors that the program ignores when it reserves disk space: it also writes without reservation.
# EFBIG reports that a file exceeds RLIMIT_FSIZE or the maximum file size of the filesystem.
NO_ROOM_ERRNOS: Final = FULL_ERRNOS | {errno.EFBIG}
