"""Counting the calls of functions of the package, and how often they go from file to file.

A *move* is a call of a function that is in another file than its caller; functions outside the
package do not count, what they call does. Only the calling thread is counted, and what it awaits.
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
    """The recorded calls."""

    def __init__(self) -> None:
        self.trip: list[tuple[str, str]] = []  # file and function of each call

    calls = moves = 0

    @property
    def files(self) -> int:
        """Return how many files the functions are in."""
        return len({file for file, _function in self.trip})

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call: the function that ``sys.setprofile`` calls."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PACKAGE):
            return
        if frame.f_lasti > _first_instruction(code):
            return  # a coroutine or a generator resumes
        self.calls += 1
        self.trip.append((code.co_filename.removeprefix(_PACKAGE), code.co_name))
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(_PACKAGE):
            caller = caller.f_back
        self.moves += caller is not None and caller.f_code.co_filename != code.co_filename


@functools.cache
def _first_instruction(code: CodeType) -> int:
    """Return the offset of the instruction at which a function's first call is recorded."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "RESUME":
            return instruction.offset
    return -1


@contextmanager
def counting() -> Iterator[Counted]:
    """Count calls inside the block."""
    counted = Counted()
    before = sys.getprofile()
    sys.setprofile(counted.note)
    try:
        yield counted
    finally:
        sys.setprofile(before)
