"""Removing the passphrase from the environment of the process at its start.

Owns: the variable, and the memory with its value. Does not know: the use of the value.
Root and processes of the same user can read the initial environment of a process, and child
programs inherit the environment. unsetenv(3) prevents only this inheritance. The kernel shows the
memory into which execve(2) wrote the strings, so the passphrase is overwritten in this memory.
Source: proc_pid_environ(5); proc_pid_stat(5), fields 50 and 51.
"""

import ctypes
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "S3FS_META_PASSPHRASE"

_FIELDS_BEFORE: Final = 3  # number of the first field after the name in proc_pid_stat(5)
_ENV_START: Final = 50
_ENV_END: Final = 51

_taken: dict[str, str] = {}  # forked children inherit these values; executed programs do not


def take() -> None:
    """Remove the passphrase from this process's environment, and keep it in memory."""
    value = os.environ.pop(VARIABLE, None)
    if value is not None:
        _taken[VARIABLE] = value
        _overwrite(os.fsencode(VARIABLE))


def passphrase() -> str | None:
    """Return the passphrase of the initial environment, even after ``take``, or None if unset."""
    return os.environ.get(VARIABLE, _taken.get(VARIABLE))


def _overwrite(name: bytes) -> None:
    """Overwrite the variables of a given name with zeros in the memory that /proc shows."""
    try:
        status = Path("/proc/self/stat").read_bytes()
    except FileNotFoundError:
        return  # without /proc, other programs cannot read the environment
    fields = status.rpartition(b")")[2].split()
    start, end = (int(fields[number - _FIELDS_BEFORE]) for number in (_ENV_START, _ENV_END))
    position = start
    for entry in ctypes.string_at(start, end - start).split(b"\0"):
        if entry.startswith(name + b"="):
            ctypes.memset(position, 0, len(entry))
        position += len(entry) + 1
