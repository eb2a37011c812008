"""create, stat, rename, unlink of empty files: one thread, one directory, two subjects in turns.

The subjects take turns every few thousand files, so that a disturbance of the machine falls on both;
the ratio is the median over all pairs of turns. stat is asked after the kernel dropped its entries,
so that every one is a request to the daemon; otherwise the kernel would answer from its cache and
nothing would be measured.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from contrib.bench import machine, samples, targets
from contrib.bench.subjects import NullSubject, S3fsSubject, Subject

TURN_FILES: Final = 5000
WARM_UP_FILES: Final = 1000
# Of the do-nothing filesystem with the same request loop.
RATIOS_MIN: Final = {"create": 0.75, "stat": 0.85, "rename": 0.85, "unlink": 0.75}

Pairs = Sequence[tuple[str, str]]


class Phase(NamedTuple):
    """One operation, once per file."""

    name: str
    cold: bool  # whether the kernel's entries are dropped first
    one: Callable[[str, str], None]


class Measured(NamedTuple):
    """Seconds of one subject in one phase of one round."""

    turns_s: list[float]  # wall time of each turn
    cpu_s: float  # of the daemon, over the phase


def _create(old: str, new: str) -> None:
    os.close(os.open(old, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _stat(old: str, new: str) -> None:
    os.stat(old)


def _rename(old: str, new: str) -> None:
    os.rename(old, new)


def _unlink(old: str, new: str) -> None:
    os.unlink(new)


PHASES: Final = (
    Phase("create", False, _create),
    Phase("stat", True, _stat),
    Phase("rename", False, _rename),
    Phase("unlink", False, _unlink),
)


def run(scratch: Path, *, files: int, rounds: int) -> dict[str, object]:
    """Measure s3fs-meta and two do-nothing filesystems, and return the figures.

    One takes requests as s3fs-meta does, the other one in pyfuse3's own way.
    """
    figures: dict[str, Any] = {}
    for number, (name, scheduled) in enumerate((("same loop", False), ("own loop", True))):
        subject = S3fsSubject("s3fs-meta", scratch / f"subject-{number}")
        subject.make()
        with (
            NullSubject("do-nothing", scratch / f"null-{number}", scheduled=scheduled) as null,
            subject,
        ):
            figures[name] = compare(null, subject, files=files, rounds=rounds)
    operations = figures["same loop"]["operations"]
    figures["targets"] = [
        targets.at_least(
            f"{name}: speed against do-nothing", operations[name]["ratio"], wanted, "times"
        )
        for name, wanted in RATIOS_MIN.items()
    ]
    return figures


def compare(null: Subject, subject: Subject, *, files: int, rounds: int) -> dict[str, object]:
    """Measure two mounted subjects in turns."""
    both = (null, subject)
    _round(both, [_names(each, "warm", WARM_UP_FILES) for each in both])
    measured = [
        _round(both, [_names(each, f"round{number}", files) for each in both])
        for number in range(rounds)
    ]
    operations = {
        phase.name: _operation(both, [each[phase.name] for each in measured], files)
        for phase in PHASES
    }
    return {
        "files": files,
        "rounds": rounds,
        "operations": operations,
    }


def _names(subject: Subject, directory: str, count: int) -> Pairs:
    """Make a directory; return pairs of paths in it, old and new, with names of 16 bytes."""
    path = subject.mountpoint / directory
    path.mkdir()
    return [(f"{path}/file-{i:011d}", f"{path}/gone-{i:011d}") for i in range(count)]


def _round(both: Sequence[Subject], names: Sequence[Pairs]) -> dict[str, list[Measured]]:
    """Run all phases once; return for each the times of both subjects, in their order."""
    return {phase.name: _phase(phase, both, names) for phase in PHASES}


def _phase(phase: Phase, both: Sequence[Subject], names: Sequence[Pairs]) -> list[Measured]:
    if phase.cold:
        machine.drop_kernel_caches(pages=False)
    _settle(both)
    before = [_cpu_s(each) for each in both]
    turns: list[list[float]] = [[] for _ in both]
    for number, start in enumerate(range(0, len(names[0]), TURN_FILES)):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for which in order:
            turns[which].append(_turn_s(phase, names[which][start : start + TURN_FILES]))
    _settle(both)  # work postponed by an operation is part of its cost
    cpu = [_cpu_s(each) - was for each, was in zip(both, before, strict=True)]
    return [Measured(*each) for each in zip(turns, cpu, strict=True)]


def _turn_s(phase: Phase, pairs: Pairs) -> float:
    one = phase.one
    start = time.perf_counter()
    for old, new in pairs:
        one(old, new)
    return time.perf_counter() - start


def _settle(both: Sequence[Subject]) -> None:
    for each in both:
        if each.pid:
            machine.settle(each.pid)


def _cpu_s(subject: Subject) -> float:
    return machine.cpu_s(subject.pid) if subject.pid else 0.0


def _operation(
    both: Sequence[Subject], rounds: Sequence[Sequence[Measured]], files: int
) -> dict[str, object]:
    """Return the figures of one operation, in microseconds per file."""
    pairs = [
        null_s / subject_s
        for null, subject in rounds
        for null_s, subject_s in zip(null.turns_s, subject.turns_s, strict=True)
    ]
    figures: dict[str, object] = {"ratio": statistics.median(pairs), "ratio_of_turns": pairs}
    for which, each in enumerate(both):
        wall = [sum(taken[which].turns_s) / files * 1e6 for taken in rounds]
        cpu = [taken[which].cpu_s / files * 1e6 for taken in rounds]
        figures[each.name] = {"wall_us": samples.summary(wall), "cpu_us": samples.summary(cpu)}
    return figures
