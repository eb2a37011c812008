"""The speed of operations on empty and small files, on s3fs-meta and other filesystems.

In each turn the same operation is done on 500 files of every filesystem. The order of the
filesystems changes from turn to turn, so that a disturbance of the machine affects all of them. A
result is the median of the turns; a ratio is the median of the ratios within a turn. The kernel's
dentries are dropped before stat, so that each stat is a request to the daemon. The do-nothing
filesystem is measured three times: with the direct request loop of s3fs-meta, with the request loop
of pyfuse3, and with the direct request loop and content in files instead of in memory.
A few files are made before the first turn and are not measured. Each client uses its own directory.
*Processor* is the CPU time of the daemon, including its work after a turn.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from contrib.bench import local_subjects, machine, samples, targets
from contrib.bench.names import CEILING, DISK, JUICEFS, OURS, S3QL
from contrib.bench.subjects import NullSubject, Subject

TURN_FILES: Final = 500
CLIENTS: Final = (1, 4)
SMALL: Final = bytes(range(256)) * 16  # 4 KiB
PEER_TIMES_MIN: Final = 3.0
SMALL_TO_EMPTY_MIN: Final = 0.5  # Minimum creation rate of small files, relative to empty files.
SMALL_CPU_US_MAX: Final = 300.0  # Maximum CPU time of the daemon for creating a file of 4 KiB.
OWN_LOOP: Final = f"{CEILING}, pyfuse3's loop"
OVER_FILES: Final = f"{CEILING} over files"
FIRST_WRITE: Final = "write 5 bytes into an empty file"
FIRST_WRITE_RATIO_MIN: Final = 0.7  # Minimum speed relative to OVER_FILES.
# Minimum speed with one client, relative to the do-nothing filesystem with the same request loop.
CEILING_RATIOS_MIN: Final = {
    "create": 0.8, "create and write 4 KiB": 0.7, "mkdir": 0.75, "link": 0.75, "stat": 0.85,
    "rename": 0.75, "unlink": 0.8,
}  # fmt: skip


# --- the measured operations -------------------------------------------------------------------


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _write_small(path: str) -> None:
    fd = os.open(f"{path}.w", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, SMALL)
    os.close(fd)


def _write_first(path: str) -> None:
    fd = os.open(f"{path}.r", os.O_WRONLY)
    os.write(fd, SMALL[:5])
    os.close(fd)


class Phase(NamedTuple):
    """One operation that a turn repeats for each file."""

    name: str
    one: Callable[[str], object]
    cold: bool = False  # True to drop the kernel's dentries before the operation.


PHASES: Final = (
    Phase("create", _create),
    Phase("create and write 4 KiB", _write_small),
    Phase("mkdir", lambda path: os.mkdir(f"{path}.d")),
    Phase("symlink", lambda path: os.symlink("target", f"{path}.s")),
    Phase("link", lambda path: os.link(path, f"{path}.l")),
    Phase("stat", os.stat, cold=True),
    Phase("rename", lambda path: os.rename(path, f"{path}.r")),
    Phase("unlink", lambda path: os.unlink(f"{path}.l")),
    Phase(FIRST_WRITE, _write_first),
)


def _turn_s(number: int, paths: Sequence[str]) -> float:
    """Do the operation of phase *number* on each path; return the seconds. Runs in a worker."""
    one = PHASES[number].one
    start = time.perf_counter()
    for path in paths:
        one(path)
    return time.perf_counter() - start


# --- measurement of operations -----------------------------------------------------------------


def run(scratch: Path, *, files: int) -> dict[str, object]:
    """Measure all installed filesystems in full turns and return the results."""
    files = samples.full_turns(files, TURN_FILES) * TURN_FILES
    with ExitStack() as stack:
        subjects, absent = local_subjects.available(
            scratch, (OURS, CEILING, DISK, JUICEFS, S3QL), plain_files=False
        )
        subjects.append(NullSubject(OWN_LOOP, scratch / "own-loop", scheduled=True))
        subjects.append(NullSubject(OVER_FILES, scratch / "over-files", plain_files=True))
        for subject in subjects:
            stack.enter_context(subject)
        pool = stack.enter_context(ProcessPoolExecutor(max(CLIENTS)))
        tables = {
            f"{clients} client{'s' * (clients > 1)}": _table(subjects, pool, clients, files)
            for clients in CLIENTS
        }
    return {"files": files, "absent": absent, **tables, "targets": _targets(tables)}


def _targets(tables: dict[str, dict[str, Any]]) -> list[targets.Target]:
    """Return the targets, most of which are relative to other filesystems."""
    one = next(iter(tables.values()))
    wanted = [
        targets.at_least(
            f"{name}: speed against {CEILING}",
            one[name][f"speed against {CEILING}"],
            least,
            "times",
        )
        for name, least in CEILING_RATIOS_MIN.items()
    ]
    empty, small = (one[name][f"{OURS}, us"] for name in ("create", "create and write 4 KiB"))
    small_to_empty = empty["median"] / small["median"]
    what = "rate of small files against empty ones"
    wanted.append(targets.at_least(what, small_to_empty, SMALL_TO_EMPTY_MIN, "times"))
    cpu_us = one["create and write 4 KiB"][f"{OURS}, processor, us"]
    what = "processor time of the daemon for a small file"
    wanted.append(targets.at_most(what, cpu_us, SMALL_CPU_US_MAX, "us"))
    for other, least in ((OVER_FILES, FIRST_WRITE_RATIO_MIN), (S3QL, PEER_TIMES_MIN)):
        times = one[FIRST_WRITE].get(f"speed against {other}")
        if times is not None:
            what = f"{FIRST_WRITE}: speed against {other}"
            wanted.append(targets.at_least(what, times, least, "times"))
    return wanted + [
        targets.at_least(
            f"{name}, {clients}: speed against {JUICEFS}", times, PEER_TIMES_MIN, "times"
        )
        for clients, table in tables.items()
        for name, figures in table.items()
        if (times := figures.get(f"speed against {JUICEFS}")) is not None
    ]


def _table(
    subjects: Sequence[Subject], pool: ProcessPoolExecutor, clients: int, files: int
) -> dict[str, Any]:
    """Return microseconds per file of each filesystem and phase, and the speed of s3fs-meta."""
    places = {
        subject.name: [subject.mountpoint / f"{clients}-{client}" for client in range(clients)]
        for subject in subjects
    }
    for paths in places.values():
        for path in paths:
            path.mkdir()
    for path in (path for paths in places.values() for path in paths):
        _turn_s(0, [f"{path}/warm-{number}" for number in range(TURN_FILES)])
    pids = {subject.name: subject.pid for subject in subjects if subject.pid}
    return {
        phase.name: _phase(number, places, pids, pool, files) for number, phase in enumerate(PHASES)
    }


def _phase(
    number: int,
    places: dict[str, list[Path]],
    pids: dict[str, int],
    pool: ProcessPoolExecutor,
    files: int,
) -> dict[str, Any]:
    if PHASES[number].cold:
        machine.drop_kernel_caches(pages=False)
    before = _processor_s(pids)
    taken: dict[str, list[float]] = {name: [] for name in places}
    for turn in range(files // TURN_FILES):
        wanted = range(turn * TURN_FILES, (turn + 1) * TURN_FILES)
        for name in samples.rotated(list(places), turn):
            work = [[f"{place}/file-{i:011d}" for i in wanted] for place in places[name]]
            seconds = max(pool.map(_turn_s, [number] * len(work), work))
            taken[name].append(seconds / (TURN_FILES * len(work)))
    done = files // TURN_FILES * TURN_FILES * len(places[OURS])
    figures: dict[str, Any] = {
        f"{name}, us": samples.summary([each * 1e6 for each in values])
        for name, values in taken.items()
    }
    for name, after in _processor_s(pids).items():
        figures[f"{name}, processor, us"] = (after - before[name]) / done * 1e6
    for name, values in taken.items():
        if name != OURS:
            pairs = [other / own for other, own in zip(values, taken[OURS], strict=True)]
            figures[f"speed against {name}"] = statistics.median(pairs)
    return figures


def _processor_s(pids: dict[str, int]) -> dict[str, float]:
    """Wait until all daemons are idle; return their CPU time since their start."""
    for pid in pids.values():
        machine.settle(pid)
    return {name: machine.cpu_s(pid) for name, pid in pids.items()}
