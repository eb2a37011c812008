"""The errnos of a write that does not fit on a local disk.

Owns: these sets of errnos. Does not know: the effect of a full disk on a request.
Source: write(2).
"""

import errno
from typing import Final

FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

# Also the errno of a file that exceeds RLIMIT_FSIZE or the maximum file size of the filesystem.
# These are the errnos for a file of reserved space, which the program can do without.
NO_ROOM_ERRNOS: Final = FULL_ERRNOS | {errno.EFBIG}
