"""Standard streams for a process whose caller has closed some of them.

Owns: the replacements. Does not know: output.
Keeps: descriptors 0, 1 and 2 are in use. Otherwise the next file, such as a lock or a socket, would
get the number of a stream, and the daemon would replace it by its log.
Reading returns nothing, and messages on standard error are discarded. Standard output cannot be
written, because a command must not succeed if its result is lost.
"""

import os
import sys
from typing import Final

_CLOSED_OUTPUT: Final = os.O_RDONLY  # write(2) fails with EBADF, as on a closed descriptor


def open_missing() -> None:
    """Open each standard stream that is closed; call this before any other file is opened."""
    # open(2) returns the lowest free number, so the order of the streams matters.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, _CLOSED_OUTPUT), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", 1, errors="backslashreplace")
