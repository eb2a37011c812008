"""Everyday work on the disk, the do-nothing filesystem, s3fs-meta, JuiceFS and S3QL.

All filesystems are mounted at the same time, over directories of one disk. In each turn each step
runs on each filesystem, in an order that changes from turn to turn. Each turn has its own directory
on the same filesystems. Between two steps, the daemon uploads all pending data and the disk writes
it; this is not timed. The kernel's caches are not dropped. A result is the median of the turns, and
a ratio is the median of the ratios within a turn. *Processor* is the CPU time of the daemon and its
children, including work after the step. The largest PSS is the peak memory of the daemon and its
children over all turns. The input is created locally, and is the same in each run.
"""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from contrib.bench import awake, local_subjects, machine, samples, targets
from contrib.bench.names import CEILING, DISK, JUICEFS, NAMES, OURS, S3QL
from contrib.bench.subjects import PROJECT, Subject, SubjectError
from contrib.bench.workloads import materials, steps
from contrib.bench.workloads.steps import Step

STEP_S_MAX: Final = 900.0
SYNC_S_MAX: Final = 300.0
KILLED_S_MAX: Final = 5.0
CEILING_RATIO_MAX: Final = 1.3


class Taken(NamedTuple):
    """The measured time, CPU time and memory of one step on one filesystem."""

    wall_s: float
    processor_s: float
    pss_bytes: int  # Peak PSS of the daemon and its children; 0 if the memory was not sampled.


Table = dict[str, dict[str, dict[int, Taken]]]  # Results by step, filesystem and turn.


def run(
    scratch: Path,
    *,
    files: int,
    messages: int,
    turns: int,
    only: Sequence[str],
    subjects: Sequence[str],
    tree: Path | None,
) -> dict[str, Any]:
    """Measure all steps on all installed filesystems and return the results.

    Args:
        files: number of files in the generated source tree.
        messages: number of messages that the mail steps deliver.
        only: prefixes of step names; empty for all steps.
        subjects: names of filesystems; empty for all filesystems.
        tree: a source tree to copy instead of generating one.
    """
    todo, skipped = steps.chosen(only)
    wanted = [name for name in NAMES if not subjects or name in subjects]
    here, absent = local_subjects.available(scratch, wanted)
    table, failed, memory = measure(scratch, Work(todo, files, messages, turns, tree), here)
    names = [step.name for step in todo if not only or step.name.startswith(tuple(only))]
    return summarized({name: table[name] for name in names}) | {
        "files": files,
        "messages": messages,
        "turns": turns,
        "absent": absent,
        "skipped": skipped,
        "failed": [f"{where}: {why}" for where, why in failed.items()],
        "memory": memory,
        "commands": {
            name: _shown(next(filter(None, map(steps.BY_NAME[name].of, NAMES)))) for name in names
        },
    }


class Work(NamedTuple):
    """The steps of a benchmark run, and the sizes of their input."""

    steps: Sequence[Step]
    files: int  # Number of files in the generated source tree.
    messages: int
    turns: int
    tree: Path | None = None  # Existing source tree to copy; None to generate a tree.


class Measured(NamedTuple):
    """The measurements of a run, the reasons for failures, and the daemons' final memory."""

    table: Table
    failed: dict[str, str]
    memory: dict[str, dict[str, int]]


def measure(scratch: Path, work: Work, subjects: Sequence[Subject]) -> Measured:
    """Mount the filesystems, and run each step on one filesystem after another."""
    place = scratch / "materials"
    place.mkdir()
    if work.tree:
        call(["cp", "-a", str(work.tree), str(place / "source")])
    for name in dict.fromkeys(step.material for step in work.steps if step.material):
        materials.MATERIALS[name](place, work.files)
    table: Table = {step.name: {} for step in work.steps}
    failed: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for subject in subjects:
            stack.enter_context(subject)
        marks = {"{materials}": str(place), "{messages}": str(work.messages)}
        session = Session(marks, subjects, table, failed)
        for turn in range(work.turns):
            session.turn(turn, work.steps)
        memory = {each.name: machine.memory_bytes(each.pid) for each in subjects if each.pid}
    return Measured(table, failed, memory)


def _shown(words: Sequence[str]) -> str:
    """Return a command without the directory of its program, which differs on each machine."""
    return " ".join([Path(words[0]).name, *words[1:]])


class Session:
    """A run of the workloads: its mounted filesystems, its material and its measurements."""

    def __init__(
        self,
        marks: Mapping[str, str],
        subjects: Sequence[Subject],
        table: Table,
        failed: dict[str, str],
    ) -> None:
        self._marks = marks  # Values of the placeholders in commands.
        self._subjects = subjects
        self._table = table
        self._failed = failed
        self._lost: set[str] = set()  # Names of filesystems that stopped responding.

    def turn(self, turn: int, todo: Sequence[Step]) -> None:
        """Run all steps once on each filesystem."""
        for subject in self._subjects:
            if subject.name not in self._lost:
                try:
                    _work(subject, turn).mkdir()
                except OSError as exc:
                    self._note("mkdir", subject, turn, exc)
                    self._abandon(subject)
        for step in todo:
            for subject in samples.rotated(self._subjects, turn):
                if subject.name in self._lost or not step.of(subject.name):
                    continue
                try:
                    taken = self._step(step, subject, turn)
                except (SubjectError, subprocess.SubprocessError, OSError) as exc:
                    self._note(step.name, subject, turn, exc)
                    if isinstance(exc, subprocess.TimeoutExpired) or not subject.alive:
                        self._abandon(subject)
                else:
                    self._table[step.name].setdefault(subject.name, {})[turn] = taken
                    print(
                        f"{turn + 1} {step.name}, {subject.name}: {taken.wall_s:.2f} s", flush=True
                    )

    def _note(self, step: str, subject: Subject, turn: int, error: Exception) -> None:
        """Record the reason for the failure of a step: the last line, without the mountpoint."""
        text = str(error)
        if isinstance(error, subprocess.CalledProcessError):
            text = (error.stderr.strip().splitlines() or [text])[-1]
        text = text.replace(str(subject.mountpoint), "MOUNTPOINT")
        self._failed[f"turn {turn + 1}, {step}, {subject.name}"] = text
        print(f"failed: {step} on {subject.name}: {text}", file=sys.stderr)

    def _abandon(self, subject: Subject) -> None:
        """Exclude a filesystem that does not respond or accepts no new directory."""
        self._lost.add(subject.name)
        subject.abandon()

    def _step(self, step: Step, subject: Subject, turn: int) -> Taken:
        marks = {"{work}": str(_work(subject, turn)), **self._marks}
        if step.before:
            call(steps.filled(step.before, marks))
        self._calm(subject)
        subject.peak_pss_bytes()  # Reset the measured peak memory before the step.
        before_s = _processor_s(subject)
        with awake.paused() if step.waits_for_disk else contextlib.nullcontext():
            start = time.perf_counter()
            printed = call(steps.filled(step.of(subject.name), marks))
            wall_s = time.perf_counter() - start
        self._calm(subject)
        return Taken(
            float(printed) if step.prints_seconds else wall_s,
            _processor_s(subject) - before_s,
            subject.peak_pss_bytes(),
        )

    def _calm(self, subject: Subject) -> None:
        """Wait until the filesystem has uploaded its data and the disk has written its data."""
        subject.settle()
        call(["sync", "--file-system", self._marks["{materials}"]], SYNC_S_MAX)


def _work(subject: Subject, turn: int) -> Path:
    return subject.mountpoint / f"turn-{turn}"


def _processor_s(subject: Subject) -> float:
    return machine.cpu_s(subject.pid) if subject.pid else 0.0


def call(command: Sequence[str], timeout_s: float = STEP_S_MAX) -> str:
    """Run a command; return its output.

    After *timeout_s* seconds the command is killed. The kernel may be unable to kill a process that
    waits for a filesystem. The function does not wait until such a process exits; the process exits
    when the caller aborts the filesystem.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        text=True, cwd=PROJECT, env=materials.environment(), start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None, "the process was started with a pipe"
    assert process.stderr is not None, "the process was started with a pipe"
    with process.stdout, process.stderr:
        try:
            printed, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_S_MAX)
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, printed, errors)
    return printed


def summarized(table: Table) -> dict[str, Any]:
    """Return the medians, ratios and targets of all measurements."""
    seconds = {
        name: {who: samples.summary([each.wall_s for each in turns.values()])
               for who, turns in row.items()}
        for name, row in table.items()
    }  # fmt: skip
    processor = {
        name: {who: statistics.median(each.processor_s for each in turns.values())
               for who, turns in row.items() if who != DISK}
        for name, row in table.items()
    }  # fmt: skip
    memory = {
        name: {who: max(each.pss_bytes for each in turns.values()) / 1e6
               for who, turns in row.items() if who != DISK}
        for name, row in table.items()
    }  # fmt: skip
    ratios = {name: dict(_ratios(row)) for name, row in table.items()}
    return {
        "seconds": seconds,
        f"of {CEILING}": ratios,
        "processor_seconds": processor,
        "largest_pss_mb": memory,
        "targets": list(_targets(ratios)),
    }


def _ratios(row: Mapping[str, Mapping[int, Taken]]) -> Iterator[tuple[str, float]]:
    """Yield each filesystem and its time relative to the do-nothing filesystem."""
    baseline = row.get(CEILING, {})
    for who, turns in row.items():
        pairs = [turns[turn].wall_s / baseline[turn].wall_s for turn in turns if turn in baseline]
        if pairs and who != CEILING:
            yield who, statistics.median(pairs)


def _targets(ratios: Mapping[str, Mapping[str, float]]) -> Iterator[targets.Target]:
    for name, row in ratios.items():
        if OURS not in row:
            continue
        what = f"{name}: time against {CEILING}"
        yield targets.at_most(what, row[OURS], CEILING_RATIO_MAX, "times")
        for peer in (JUICEFS, S3QL):
            if peer in row:
                ahead = row[peer] / row[OURS]
                yield targets.at_least(f"{name}: speed against {peer}", ahead, 1.0, "times")
