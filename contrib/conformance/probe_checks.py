"""A list of probed operations, and the checks of their effects.

A function tries one operation of POSIX or Linux in an empty directory. It returns normally if the
operation had the effect that its manual page describes. It raises ``Different`` if the effect was
different, and OSError if the operation was refused.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Check = Callable[[Path], None]

libc = ctypes.CDLL(None, use_errno=True)


class Different(Exception):  # noqa: N818 - the name describes the result
    """Error: the effect of the operation differs from its manual page."""


class Operation(NamedTuple):
    """One operation, its manual page, and the function that tries it."""

    name: str
    page: str  # Name of the manual page for the operation.
    check: Check


class Operations(list[Operation]):
    """The operations of one module, in the order of its functions."""

    def add(self, name: str, page: str) -> Callable[[Check], Check]:
        """Return a decorator that adds a function to the list."""

        def note(check: Check) -> Check:
            self.append(Operation(name, page, check))
            return check

        return note


def expect(found: object, wanted: object) -> None:
    """Raise Different if a result is not the wanted result."""
    if found != wanted:
        raise Different(f"{found!r} instead of {wanted!r}")


def refused(code: int, call: Callable[[], object]) -> None:
    """Require that a call fails with the errno *code*; otherwise raise Different or OSError."""
    try:
        call()
    except OSError as exc:
        if exc.errno != code:
            raise
        return
    raise Different(f"not refused with {errno.errorcode[code]}")


def checked(result: int) -> int:
    """Return the result of a C function; raise OSError if it is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def make_file(folder: Path, content: bytes = b"content", name: str = "file") -> Path:
    """Make a file with the given content; return its path."""
    path = folder / name
    path.write_bytes(content)
    return path
