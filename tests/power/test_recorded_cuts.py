"""Every state that a cut of power may leave keeps the promises of docs/design/durability.md.

A program runs while everything that the disk is told is recorded. Then states are built as a disk
may hold them after a cut, each is mounted on the next boot, and judged: the database opens, the
rows are a prefix of the operations that has all that a sync promised, every byte is one that was
there since, fsck finds nothing but content lost that nobody promised, and work goes on.
A seed chooses the program and the states; it stands in the name of the test.
"""

import random
from typing import Final

import pytest

from s3fs_meta.meta.pragmas import Pragmas
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.testing.operations import Act, Wish
from s3fs_meta.testing.power_cut import Dice, Exactly, PowerCut
from s3fs_meta.testing.recorded_disk import SyncedAll, SyncedDirectory, SyncedFile

from .conftest import Boots
from .recorded_run import (
    BUSY,
    COMMIT,
    EVICT,
    FLUSH,
    KILL,
    READ,
    REMOUNT,
    SYNC,
    UPLOAD,
    Run,
    Step,
    judge,
    record,
)

MODES: Final = (
    ("wal", "normal"),
    ("wal", "full"),
    ("delete", "full"),
    ("delete", "extra"),
    ("truncate", "full"),
    ("truncate", "extra"),
    ("persist", "full"),
    ("persist", "extra"),
)
EVENTS: Final = (COMMIT, SYNC, BUSY, UPLOAD, FLUSH, EVICT, READ, REMOUNT, KILL)
_OFTEN: Final = {Act.WRITE, Act.APPEND, Act.MAKE_FILE, Act.FSYNC}
ACTS: Final = [act for act in Act for _ in range(4 if act in _OFTEN else 1)]


def make_program(seed: int, steps: int) -> list[Step]:
    """Return a program; nothing in its contents is zero, so that lost bytes show."""
    dice = random.Random(seed)
    program: list[Step] = [Wish(Act.MAKE_FILE), Wish(Act.WRITE, 0, 0, 5, 1)]
    for _ in range(steps):
        if dice.random() < 0.3:
            program.append(dice.choice(EVENTS))
        else:
            a, b, c = (dice.randrange(16) for _ in range(3))
            program.append(Wish(dice.choice(ACTS), a, b, c, dice.randrange(1, 16)))
    return program


def cuts_worth_trying(run: Run) -> list[int]:
    """Return the moments before a sync has done its work, and the end.

    A cut between two of them may leave nothing that a cut at the later one may not.
    """
    syncs = (SyncedFile, SyncedDirectory, SyncedAll)
    found = [cut for cut, event in enumerate(run.events) if isinstance(event, syncs)]
    return [*found, len(run.events)]


async def judge_some(run: Run, seed: int, states: int, boots: Boots) -> None:
    """Judge states that a seed chooses."""
    cuts = cuts_worth_trying(run)
    dice = random.Random(seed)
    for number in range(states):
        cut = dice.choice(cuts)
        state = PowerCut(run.events[:cut]).choose(Dice(1000 * seed + number))
        try:
            await judge(run, cut, state, boots.next_home())
        except Exception as exc:
            raise AssertionError(f"state {number} of seed {seed}, cut at event {cut}") from exc


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("journal_mode", "synchronous"), MODES)
async def test_promises_survive_a_cut_of_power(
    template: MemoryStore,
    boots: Boots,
    journal_mode: str,
    synchronous: str,
    seed: int,
) -> None:
    """Some states of a short program under each journal that can keep a promise."""
    pragmas = Pragmas(journal_mode=journal_mode, synchronous=synchronous)
    run = await record(make_program(seed, 12), boots.next_home(), template, pragmas)

    await judge_some(run, seed, 8, boots)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 130))
@pytest.mark.parametrize(("journal_mode", "synchronous"), MODES)
async def test_promises_survive_many_cuts_of_power(
    template: MemoryStore,
    boots: Boots,
    journal_mode: str,
    synchronous: str,
    seed: int,
) -> None:
    """Many states of longer programs."""
    pragmas = Pragmas(journal_mode=journal_mode, synchronous=synchronous)
    run = await record(make_program(seed, 25), boots.next_home(), template, pragmas)

    await judge_some(run, seed, 40, boots)


EVERY_MAX: Final = 9  # unsynced changes of which every combination is tried


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("journal_mode", "synchronous"), [("wal", "normal"), ("delete", "full")])
async def test_every_state_of_a_short_run(
    template: MemoryStore, boots: Boots, journal_mode: str, synchronous: str
) -> None:
    """Of one small fsynced file: at every cut with few unsynced changes, each there or not."""
    pragmas = Pragmas(journal_mode=journal_mode, synchronous=synchronous, page_size=65536)
    program = [Wish(Act.MAKE_FILE), Wish(Act.APPEND, 0, 0, 1, 1), Wish(Act.FSYNC)]
    run = await record(program, boots.next_home(), template, pragmas)

    judged = 0
    for cut in cuts_worth_trying(run):
        power_cut = PowerCut(run.events[:cut])
        if power_cut.loose <= EVERY_MAX:
            for bits in range(1 << power_cut.loose):
                await judge(run, cut, power_cut.choose(Exactly(bits)), boots.next_home())
                judged += 1
    assert judged > 50
