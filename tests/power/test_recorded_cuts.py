"""Recorded power cuts: every state that a cut may leave keeps the documented promises.

docs/design/durability.md lists the promises. A program runs while all requests to the disk are
recorded. Then states are built that a disk may contain after a cut. Each state is mounted as on the
next boot, and checked. The database must open. Its rows must be a prefix of the operations, and
must include every synced operation. Every byte must be from a state since the last sync. fsck may
report only the loss of unsynced content. The filesystem must be writable. A seed, which is in the
name of the test, selects the program and the states.
"""

import itertools
import logging
import random
from collections.abc import Iterator
from typing import Final

import pytest

from s3fs_meta.cache.crash_safety import intent_log
from s3fs_meta.errors import FormatError
from s3fs_meta.meta.db.pragmas import Pragmas
from s3fs_meta.objects.memory import MemoryStore
from s3fs_meta.sync.opening.local_state_choice import ADVICE
from s3fs_meta.testing.operations import Act, Wish
from s3fs_meta.testing.power_cut import Dice, Exactly, PowerCut, State
from s3fs_meta.testing.recorded_disk import (
    Entered,
    Lost,
    SyncedAll,
    SyncedDirectory,
    SyncedFile,
    Wrote,
)
from tests.power.conftest import Boots
from tests.power.recorded_run import (
    BUSY,
    COMMIT,
    EVICT,
    FLUSH,
    KILL,
    KILL_UNCOMMITTED,
    READ,
    REMOUNT,
    SYNC,
    UPLOAD,
    CancelledFlush,
    FailedSync,
    PastCopy,
    Run,
    Step,
    judge,
    judge_choice,
    record,
)
from tests.sampled import sampled

pytestmark = pytest.mark.thorough

_log = logging.getLogger(__name__)

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
CANCELLED: Final = "cancelled flush"
EVENTS: Final = (COMMIT, SYNC, BUSY, UPLOAD, FLUSH, CANCELLED, EVICT, READ, REMOUNT, KILL)
_OFTEN: Final = {Act.WRITE, Act.APPEND, Act.COPY_RANGE, Act.MAKE_FILE, Act.FSYNC}
# CLONE is omitted, because the model does not know the inode numbers of a copy.
ACTS: Final = [act for act in Act if act is not Act.CLONE for _ in range(4 if act in _OFTEN else 1)]


def make_program(seed: int, steps: int) -> list[Step]:
    """Return a random program that writes no zero bytes, so that lost bytes are visible as zeros."""
    dice = random.Random(seed)
    program: list[Step] = [Wish(Act.MAKE_FILE), Wish(Act.WRITE, 0, 0, 5, 1)]
    for _ in range(steps):
        if dice.random() < 0.3:
            event = dice.choice(EVENTS)
            program.append(CancelledFlush(dice.randrange(60)) if event == CANCELLED else event)
        else:
            a, b, c = (dice.randrange(16) for _ in range(3))
            program.append(Wish(dice.choice(ACTS), a, b, c, dice.randrange(1, 16)))
    return program


def differing_cuts(run: Run) -> list[int]:
    """Return the events at which power cuts leave different states: completed syncs and the end.

    A cut between two such events leaves only states that a cut at the later event can also leave.
    """
    syncs = (SyncedFile, SyncedDirectory, SyncedAll)
    found = [cut for cut, event in enumerate(run.events) if isinstance(event, syncs)]
    return [*found, len(run.events)]


async def judge_random_states(run: Run, seed: int, states: int, boots: Boots) -> None:
    """Check random states that power cuts may leave during a run."""
    cuts = differing_cuts(run)
    dice = random.Random(seed)
    for number in range(states):
        cut = dice.choice(cuts)
        try:
            await judge_choice(run, cut, Dice(1000 * seed + number), boots.next_home())
        except Exception as exc:
            text = f"seed {seed}: wrong state {number} after a power cut at event {cut}"
            raise AssertionError(text) from exc


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "steps", "states"),
    [
        *sampled(((seed, 12, 8) for seed in range(3)), 3),
        *(pytest.param(seed, 25, 40, marks=pytest.mark.slow) for seed in range(100, 130)),
    ],
)
@pytest.mark.parametrize(("journal_mode", "synchronous"), MODES)
async def test_durability_promises_hold_after_recorded_power_cuts(
    template: MemoryStore,
    boots: Boots,
    journal_mode: str,
    synchronous: str,
    seed: int,
    steps: int,
    states: int,
) -> None:
    """The promises hold for random programs and random cuts in each durable journal mode."""
    pragmas = Pragmas(journal_mode=journal_mode, synchronous=synchronous)
    run = await record(make_program(seed, steps), boots.next_home(), template, pragmas)

    await judge_random_states(run, seed, states, boots)


def make_unsynced(seed: int, steps: int) -> list[Step]:
    """Return a random program without fsync, with many unmounts and mounts."""
    dice = random.Random(seed)
    acts = [act for act in ACTS if act is not Act.FSYNC]
    program: list[Step] = [Wish(Act.MAKE_FILE), Wish(Act.WRITE, 0, 0, 5, 1), FLUSH]
    for _ in range(steps):
        a, b, c = (dice.randrange(16) for _ in range(3))
        change = Wish(dice.choice(acts), a, b, c, dice.randrange(1, 16))
        remount = (FLUSH, REMOUNT)  # Unflushed changes are lost with a quarantined database.
        program += dice.choice(((change,), (change,), (COMMIT,), (UPLOAD,), (FLUSH,), remount))
    return [*program, FLUSH, REMOUNT, Wish(Act.MAKE_FILE, 0, 1), COMMIT]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "states"),
    [(600, 7), *(pytest.param(seed, 20, marks=pytest.mark.slow) for seed in range(600, 630))],
)
@pytest.mark.parametrize(
    ("journal_mode", "synchronous"), [("wal", "off"), ("delete", "off"), ("memory", "off")]
)
async def test_damaged_database_is_not_trusted_after_power_cuts(
    template: MemoryStore, boots: Boots, journal_mode: str, synchronous: str, seed: int, states: int
) -> None:
    """With settings that do not survive a power cut, the content of the bucket remains.

    A mount uses the content of the bucket, or is refused if SQLite cannot read the database.
    """
    pragmas = Pragmas(journal_mode=journal_mode, synchronous=synchronous)
    run = await record(make_unsynced(seed, 12), boots.next_home(), template, pragmas)

    for number in range(states):
        cut = random.Random(number).randrange(len(run.events) + 1)
        try:
            await judge_choice(run, cut, Dice(1000 * seed + number), boots.next_home())
        except FormatError as exc:
            assert ADVICE in exc.what, "only a mount that is refused gives this advice"  # noqa: PT017


def make_overwrites(seed: int, steps: int) -> list[Step]:
    """Return a program of small overwrites with changes of rows between the overwrites."""
    dice = random.Random(seed)
    program: list[Step] = [Wish(Act.MAKE_FILE), Wish(Act.WRITE, 0, 0, 3, 1)]
    for _ in range(steps):
        write = Wish(Act.WRITE, 0, dice.randrange(3), dice.randrange(3), dice.randrange(1, 16))
        often = (write, write, Wish(Act.FSYNC), Wish(Act.CHMOD, 0, dice.randrange(7)), COMMIT)
        program.append(dice.choice((*often, *often, dice.choice((UPLOAD, FLUSH, KILL, REMOUNT)))))
    return program


@pytest.mark.parametrize("seed", sampled(range(200, 204), 4))
@pytest.mark.parametrize(("journal_mode", "synchronous"), MODES[:3])
async def test_overwrites_in_place_are_durable_after_fsync(
    template: MemoryStore, boots: Boots, journal_mode: str, synchronous: str, seed: int
) -> None:
    """An overwrite in place changes no row, but an fsync must still make it durable."""
    pragmas = Pragmas(journal_mode=journal_mode, synchronous=synchronous)
    program = [*make_overwrites(seed, 16), Wish(Act.FSYNC)]
    run = await record(program, boots.next_home(), template, pragmas)

    for number in range(10):
        await judge_choice(run, len(run.events), Dice(number + 10 * seed), boots.next_home())


def make_copies(seed: int, steps: int) -> list[Step]:
    """Return a program that changes and uploads three files, and copies ranges between them."""
    dice = random.Random(seed)
    program: list[Step] = []
    for number in range(3):
        program += [Wish(Act.MAKE_FILE, 0, number), Wish(Act.APPEND, number, 0, number + 1, 1)]
    program.append(FLUSH)
    for _ in range(steps):
        a, b, c, d = (dice.randrange(1, 16) for _ in range(4))
        copy = Wish(Act.COPY_RANGE, a, b, c, d)
        changes = (Wish(Act.APPEND, a, 0, c, d), Wish(Act.TRUNCATE, a, b), Wish(Act.UNLINK, a, b))
        events = (Wish(Act.FSYNC, a), COMMIT, UPLOAD, FLUSH, EVICT, KILL)
        program.append(
            dice.choice((copy, copy, copy, dice.choice(changes), FLUSH, dice.choice(events)))
        )
    return program


@pytest.mark.parametrize("seed", sampled(range(300, 306), 3))
async def test_durability_promises_hold_for_copied_ranges_after_power_cuts(
    template: MemoryStore, boots: Boots, seed: int
) -> None:
    """A copied range shares an uploaded block or is written to a new block."""
    program = [*make_copies(seed, 30), Wish(Act.FSYNC)]
    run = await record(program, boots.next_home(), template, Pragmas())

    await judge_choice(run, len(run.events), Dice(seed), boots.next_home())
    await judge_random_states(run, seed, 8, boots)


def make_failures(seed: int, steps: int, at_end: float) -> list[Step]:
    """Return a program with failing syncs; after each failure, the filesystem is mounted again.

    Args:
        at_end: the probability that the sync of an unmount fails.
    """
    dice = random.Random(seed)
    program: list[Step] = [Wish(Act.MAKE_FILE), Wish(Act.WRITE, 0, 0, 3, 1)]
    for _ in range(steps):
        a, b, c, d = (dice.randrange(1, 16) for _ in range(4))
        write = Wish(Act.WRITE, 0, a % 3, b % 3, c)
        changes = (write, write, Wish(Act.APPEND, 0, 0, c, d), Wish(Act.MAKE_FILE, 0, b))
        failure = FailedSync(dice.choice(("/blocks/", "-wal")))
        if dice.random() < at_end:
            failure = FailedSync("-wal", at_end=True)
        program.append(dice.choice((*changes, *changes, COMMIT, failure, Wish(Act.FSYNC), UPLOAD)))
    last = FailedSync(("/blocks/", "-wal")[seed % 2], at_end=at_end > 0 and seed % 2 == 1)
    return [*program, Wish(Act.WRITE, 0, 1, 1, 7), COMMIT, last, Wish(Act.FSYNC)]


@pytest.mark.parametrize("at_end", [0.0, 0.5])
@pytest.mark.parametrize("seed", sampled(range(400, 406), 3))
async def test_durability_promises_hold_after_failed_syncs_and_power_cuts(
    template: MemoryStore, boots: Boots, seed: int, at_end: float
) -> None:
    """If a sync fails, its bytes are on the disk after an fsync of a later mount."""
    run = await record(make_failures(seed, 16, at_end), boots.next_home(), template, Pragmas())
    assert any(isinstance(event, Lost) for event in run.events), "no sync has failed"

    await judge_choice(run, len(run.events), Exactly(0), boots.next_home())
    await judge_random_states(run, seed, 8, boots)


def make_logged(seed: int, steps: int) -> list[Step]:
    """Return a program of many fsyncs and of changes that fit into the intent log."""
    dice = random.Random(seed)
    program: list[Step] = [
        Wish(Act.MAKE_FILE),
        Wish(Act.MAKE_FILE, 0, 1),
        Wish(Act.APPEND, 0, 0, 3, 1),
    ]
    program += [Wish(Act.FSYNC), SYNC]
    for _ in range(steps):
        a, b, c, d = (dice.randrange(16) for _ in range(4))
        changes: tuple[Step, ...] = (
            Wish(Act.WRITE, a % 3, b, c % 4, d or 1),
            Wish(Act.APPEND, a % 3, 0, c, d or 1),
            Wish(Act.TRUNCATE, a % 3, b % 3),
            Wish(Act.COPY_RANGE, a % 3, b, c, d),
            dice.choice(
                (Wish(Act.MAKE_FILE, 0, b), Wish(Act.RENAME, a, b, c), Wish(Act.UNLINK, a, b))
            ),
        )
        events = (SYNC, UPLOAD, FLUSH, KILL, REMOUNT, CancelledFlush(4 * a))
        fsync = Wish(Act.FSYNC, a)
        program.append(
            dice.choice(
                (*changes, *changes, COMMIT, COMMIT, BUSY, *5 * [fsync], dice.choice(events))
            )
        )
    return program


def uses_intent_log(run: Run) -> bool:
    """Return whether a run has written an entry to the intent log, whose unused space is zeros."""
    logs = {
        event.file
        for event in run.events
        if isinstance(event, Entered) and event.path.endswith(f"/{intent_log.NAME}")
    }
    return any(
        isinstance(event, Wrote) and event.file in logs and any(event.data) for event in run.events
    )


@pytest.mark.parametrize("seed", [600, 602, 679])
async def test_durability_promises_hold_for_logged_content_after_power_cuts(
    template: MemoryStore, boots: Boots, seed: int
) -> None:
    """The promises hold while the intent log fills and restarts, and after kills and remounts."""
    run = await record(make_logged(seed, 30), boots.next_home(), template, Pragmas())
    assert uses_intent_log(run)

    await judge_choice(run, len(run.events), Dice(seed), boots.next_home())
    await judge_random_states(run, seed, 6, boots)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(610, 730))
async def test_durability_promises_hold_for_much_logged_content_after_power_cuts(
    template: MemoryStore, boots: Boots, seed: int
) -> None:
    run = await record(make_logged(seed, 60), boots.next_home(), template, Pragmas())

    await judge_random_states(run, seed, 20, boots)


EVERY_MAX: Final = 9  # Up to this number of unsynced changes, the test tries every combination.


def combinations(loose: int) -> Iterator[int]:
    """Yield subsets of the unsynced changes, as bits of an integer.

    If there are few changes, every combination is tried. If there are many, the subsets are each
    prefix, each suffix, each single change, all changes but one, and each pair.
    """
    if loose <= EVERY_MAX:
        yield from range(1 << loose)
        return
    everything = (1 << loose) - 1
    for one in range(loose):
        yield from (
            (1 << one) - 1,
            everything ^ ((1 << one) - 1),
            1 << one,
            everything ^ (1 << one),
        )
    for one, other in itertools.combinations(range(loose), 2):
        yield 1 << one | 1 << other
    yield everything


def states_of(run: Run) -> Iterator[tuple[int, State]]:
    """Yield each power cut with each state that it may leave; each state is yielded once."""
    seen: set[tuple[int, int, int]] = set()
    for cut in differing_cuts(run):
        power_cut = PowerCut(run.events[:cut])
        for bits in combinations(power_cut.loose):
            state = power_cut.choose(Exactly(bits))
            found = state.fingerprint(), run.promised(cut), len(run.objects(cut))
            if found not in seen:
                seen.add(found)
                yield cut, state


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("journal_mode", "synchronous"), MODES)
async def test_durability_promises_hold_in_all_states_after_power_cuts_of_a_short_run(
    template: MemoryStore, boots: Boots, journal_mode: str, synchronous: str
) -> None:
    """A short run writes and syncs two files; all states from ``states_of`` are checked."""
    pragmas = Pragmas(journal_mode=journal_mode, synchronous=synchronous)
    append, other = Wish(Act.APPEND, 0, 0, 1, 1), Wish(Act.APPEND, 1, 0, 1, 2)
    make, make_other, fsync = Wish(Act.MAKE_FILE), Wish(Act.MAKE_FILE, 0, 1), Wish(Act.FSYNC)
    program = [make, append, fsync, make_other, other, append, fsync]
    run = await record(program, boots.next_home(), template, pragmas)

    judged = 0
    for cut, state in states_of(run):
        await judge(run, cut, state, boots.next_home())
        judged += 1
    _log.info("%d states", judged)
    assert judged > 50


def make_past_copies(seed: int, steps: int) -> list[Step]:
    """Return a program that removes trees, and copies trees of past states in several groups."""
    dice = random.Random(seed)
    program: list[Step] = [Wish(Act.MAKE_DIRECTORY, 0, number) for number in range(2)]
    for number in range(6):
        program += [Wish(Act.MAKE_FILE, 1 + number % 2, number), Wish(Act.APPEND, number, 0, 8, 1)]
    program += [Wish(Act.LINK, 0, 1, 2), FLUSH, Wish(Act.REMOVE_TREE, 0, 0), FLUSH, PastCopy(0, 0)]
    for _ in range(steps):
        a, b, c, d = (dice.randrange(16) for _ in range(4))
        copy = PastCopy(a, b)
        changes = (
            Wish(Act.REMOVE_TREE, a, b),
            Wish(Act.APPEND, a, 0, c, d or 1),
            Wish(Act.MAKE_FILE, a, b),
            Wish(Act.FSYNC, a),
        )
        events = (COMMIT, SYNC, UPLOAD, FLUSH, EVICT, REMOUNT, KILL, KILL_UNCOMMITTED)
        program.append(dice.choice((copy, copy, dice.choice(changes), dice.choice(events))))
    return program


@pytest.mark.parametrize("seed", sampled(range(500, 502), 2))
@pytest.mark.parametrize(("journal_mode", "synchronous"), [MODES[0], MODES[2], MODES[4]])
async def test_copies_of_past_trees_are_complete_or_absent_after_power_cuts(
    template: MemoryStore, boots: Boots, journal_mode: str, synchronous: str, seed: int
) -> None:
    """The next mount removes a copy whose root has no dentry, so a copy is complete or absent."""
    pragmas = Pragmas(journal_mode=journal_mode, synchronous=synchronous)
    run = await record(make_past_copies(seed, 14), boots.next_home(), template, pragmas)
    assert any(operation.act is Act.CLONE for operation in run.operations)

    await judge_choice(run, len(run.events), Dice(seed), boots.next_home())
    await judge_random_states(run, seed, 12, boots)
