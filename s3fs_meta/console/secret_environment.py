"""The passphrase in the environment: removed from it before any other step.

Owns: the variable, and the process memory that has its value. Does not know: the use of the
passphrase.
A process of the same user, and root, can read the environment with which a process was started, and
every program that it starts inherits the environment. unsetenv(3) prevents only the inheritance:
the
kernel shows the memory into which execve(2) wrote the strings, so they are overwritten there.
Source: proc_pid_environ(5); proc_pid_stat(5), fields 50 and 51.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "S3FS_META_PASSPHRASE"

_FIELDS_BEFORE: Final = 3  # number of the first field after the program's name, in proc(5)
_ENV_START: Final = 50
_ENV_END: Final = 51

_taken: dict[str, str] = {}  # kept in this process and its forks, not in programs that it starts


def take() -> None:
    """Keep the passphrase in memory and remove it from the environment of this process."""
    value = os.environ.pop(VARIABLE, None)
    if value is not None:
        _taken[VARIABLE] = value
        _overwrite(os.fsencode(VARIABLE))


def passphrase() -> str | None:
    """Return the passphrase that is in the environment, or was before ``take``."""
    return os.environ.get(VARIABLE, _taken.get(VARIABLE))


def _overwrite(name: bytes) -> None:
    """Overwrite every variable of one name with zeros in the environment that the kernel shows."""
    try:
        status = Path("/proc/self/stat").read_bytes()
    except FileNotFoundError:
        return  # no /proc here, so no program can read it there
    fields = status.rpartition(b")")[2].split()
    start, end = (int(fields[number - _FIELDS_BEFORE]) for number in (_ENV_START, _ENV_END))
    position = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        if entry.startswith(name + b"="):
            ctypes.memset(position, 0, len(entry))
        position += len(entry) + 1
