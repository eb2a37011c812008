"""Standard streams for a process whose caller has closed some of them.

Each closed stream is replaced: standard input is empty, standard error discards messages, and every
write to standard output fails. A command must not succeed if its result is lost. Without
replacements, the next opened file, such as a lock, would get the descriptor 0, 1 or 2. The daemon
would later redirect this descriptor to its log.
"""

import os
import sys
from typing import Final

_CLOSED_OUTPUT: Final = os.O_RDONLY  # write(2) fails with EBADF, as on a closed descriptor


def open_missing() -> None:
    """Open each closed standard stream; call this before any other file is opened."""
    # open(2) returns the lowest free number, so the order of the streams matters.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, _CLOSED_OUTPUT), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", 1, errors="backslashreplace")
