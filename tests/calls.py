"""Counts of function calls in the package, and of moves between its files.

A *move* is a call from a function in one file to a function in another file. A call of a function
outside the package is not counted, but a call back into the package is counted. Only the current
thread is observed, including all coroutines that it awaits.
"""

import dis
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import s3fs_meta

_PACKAGE = f"{Path(s3fs_meta.__file__).parent}/"


class Counted:
    """The recorded calls of functions in the package."""

    def __init__(self) -> None:
        self.trip: list[tuple[str, str]] = []  # The file and function of each recorded call.

    calls = moves = 0

    @property
    def files(self) -> int:
        """Return the number of files that contain a called function."""
        return len({file for file, _function in self.trip})

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a function call that the profiler (``sys.setprofile``) reports."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PACKAGE):
            return
        if frame.f_lasti > _first_instruction(code):
            return  # A resumed coroutine or generator is not a new call.
        self.calls += 1
        self.trip.append((code.co_filename.removeprefix(_PACKAGE), code.co_name))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(_PACKAGE):
            caller = caller.f_back
        self.moves += caller is not None and caller.f_code.co_filename != code.co_filename


@functools.cache
def _first_instruction(code: CodeType) -> int:
    """Return the instruction offset at which the profiler reports a new call."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RESUME":
            return instruction.offset
    return -1


@contextmanager
def counting() -> Iterator[Counted]:
    """Count function calls until the context ends."""
    counted = Counted()
    before = sys.getprofile()
    sys.setprofile(counted.note)
    try:
        yield counted
    finally:
        sys.setprofile(before)
