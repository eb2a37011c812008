"""Random programs, drawn by hypothesis."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio
from hypothesis import strategies as st
from trio.testing import MockClock

from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.testing.operations import Act, Wish
from tests.fast_folders import FAST_PLACE
from tests.model.machine import Event, Happening, Machine, Step

_NUMBER: Final = st.integers(0, 15)

# Operations on content and kills find most defects, so they are drawn more often.
_OFTEN: Final[Mapping[Act | Event, int]] = {
    Act.WRITE: 5,
    Act.APPEND: 3,
    Act.COPY_RANGE: 3,
    Act.MAKE_FILE: 2,
    Event.KILL: 6,
    Event.COMMIT: 2,
    Event.COPY_PAST: 2,
}
ACTS: Final = [act for act in Act for _ in range(_OFTEN.get(act, 1))]
EVENTS: Final = [event for event in Event for _ in range(_OFTEN.get(event, 1))]
_WISHES: Final = st.builds(Wish, st.sampled_from(ACTS), _NUMBER, _NUMBER, _NUMBER, _NUMBER)
_HAPPENINGS: Final = st.builds(Happening, st.sampled_from(EVENTS), _NUMBER, _NUMBER)

_RATE: Final = 1e5
_PROGRAM_S_MAX: Final = 200.0  # more than a busy machine needs

# A file at the start, so that few operations lack a target.
FIRST: Final[list[Step]] = [Wish(Act.MAKE_FILE), Wish(Act.WRITE, 0, 0, 5, 1)]


def programs(steps_max: int) -> st.SearchStrategy[list[Step]]:
    """Return a strategy for programs, of which a third of the steps are events."""
    step: st.SearchStrategy[Step] = st.one_of(_WISHES, _WISHES, _HAPPENINGS)
    return st.lists(step, max_size=steps_max).map(lambda steps: FIRST + steps)


def run(program: list[Step], template: MemoryStore) -> None:
    """Run a program on a copy of the filesystem.

    Virtual seconds pass 100,000 times faster, so that pauses between retries take no time.
    """
    with tempfile.TemporaryDirectory(dir=FAST_PLACE) as home:
        machine = Machine(Path(home), template)
        trio.run(_within_bound, machine, program, clock=MockClock(rate=_RATE))


async def _within_bound(machine: Machine, program: list[Step]) -> None:
    with trio.fail_after(_PROGRAM_S_MAX * _RATE):
        await machine.run(program)
