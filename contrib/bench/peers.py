"""Empty and small files on s3fs-meta, on other filesystems, and on the baselines, in turns.

Each subject does the same with a directory of its own, a few hundred files at a time, in an order
that changes from turn to turn, so that a disturbance of the machine falls on all of them. A figure
is the median over the turns; a ratio is the median over pairs of turns.
stat is asked after the kernel dropped its entries, so that each is a request to the daemon.
With several clients each has a directory of its own. *Processor* is the daemon's time, whatever it
left to do after a turn included.
"""

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from typing_extensions import override

from contrib.bench import machine, targets
from contrib.bench.subjects import (
    DaemonSubject,
    NullSubject,
    PlainDirectory,
    S3fsSubject,
    Subject,
)

TURN_FILES: Final = 500
CLIENTS: Final = (1, 4)
SMALL: Final = bytes(range(256)) * 16  # 4 KiB
OURS: Final = "s3fs-meta"
CEILING: Final = "do-nothing"
PEER: Final = "JuiceFS"
PEER_TIMES_MIN: Final = 3.0
SMALL_TO_EMPTY_MIN: Final = 0.5  # rate of small files compared with empty ones
# Of the baseline's speed, with one client; contrib.bench.metadata has the other operations.
CEILING_RATIOS_MIN: Final = {"create and write 4 KiB": 0.75, "mkdir": 0.75, "link": 0.75}


class JuiceSubject(DaemonSubject):
    """JuiceFS with SQLite metadata and a local directory as its store."""

    def __init__(self, name: str, root: Path, binary: str) -> None:
        super().__init__(name, root)
        self._binary = binary

    @property
    def _metadata(self) -> str:
        return f"sqlite3://{self.root / 'meta.db'}"

    def make(self) -> None:
        """Make the filesystem."""
        store = ["--storage", "file", "--bucket", f"{self.root / 'store'}/", "--trash-days", "0"]
        command = [self._binary, "format", *store, self._metadata, "bench"]
        subprocess.run(command, check=True, capture_output=True)

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        cache = str(self.root / "cache")
        options = ["--no-usage-report", "--cache-dir", cache, "--metrics", "127.0.0.1:0"]
        return [self._binary, "mount", *options, self._metadata, str(self.mountpoint)]


def juicefs() -> str | None:
    """Return the path of JuiceFS: on PATH, or where ``go install`` puts it; None without it."""
    beside = Path.home() / "go" / "bin" / "juicefs"
    return shutil.which("juicefs") or (str(beside) if beside.exists() else None)


# --- what is done ------------------------------------------------------------------------------


def _create(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _write_small(path: str) -> None:
    fd = os.open(f"{path}.w", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, SMALL)
    os.close(fd)


class Phase(NamedTuple):
    """One operation, once per file."""

    name: str
    one: Callable[[str], object]
    cold: bool = False  # whether the kernel's entries are dropped first


PHASES: Final = (
    Phase("create", _create),
    Phase("create and write 4 KiB", _write_small),
    Phase("mkdir", lambda path: os.mkdir(f"{path}.d")),
    Phase("symlink", lambda path: os.symlink("target", f"{path}.s")),
    Phase("link", lambda path: os.link(path, f"{path}.l")),
    Phase("stat", os.stat, cold=True),
    Phase("rename", lambda path: os.rename(path, f"{path}.r")),
    Phase("unlink", lambda path: os.unlink(f"{path}.l")),
)


def _turn_s(number: int, paths: Sequence[str]) -> float:
    """Run one phase on some files; return the seconds. Runs in a separate process."""
    one = PHASES[number].one
    start = time.perf_counter()
    for path in paths:
        one(path)
    return time.perf_counter() - start


# --- who does it -------------------------------------------------------------------------------


def run(scratch: Path, *, files: int) -> dict[str, object]:
    """Measure all available subjects and return the figures."""
    with ExitStack() as stack:
        subjects, absent = _subjects(scratch)
        for subject in subjects:
            stack.enter_context(subject)
        pool = stack.enter_context(ProcessPoolExecutor(max(CLIENTS)))
        tables = {
            f"{clients} client{'s' * (clients > 1)}": _table(subjects, pool, clients, files)
            for clients in CLIENTS
        }
    return {"files": files, "absent": absent, **tables, "targets": _targets(tables)}


def _targets(tables: dict[str, dict[str, Any]]) -> list[targets.Target]:
    """Return the targets: relative to the baseline with one client, to the peer with any number."""
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
    small_to_empty = one["create"][f"{OURS}, us"] / one["create and write 4 KiB"][f"{OURS}, us"]
    what = "rate of small files against empty ones"
    wanted.append(targets.at_least(what, small_to_empty, SMALL_TO_EMPTY_MIN, "times"))
    return wanted + [
        targets.at_least(f"{name}, {clients}: speed against {PEER}", times, PEER_TIMES_MIN, "times")
        for clients, table in tables.items()
        for name, figures in table.items()
        if (times := figures.get(f"speed against {PEER}")) is not None
    ]


def _subjects(scratch: Path) -> tuple[list[Subject], list[str]]:
    ours = S3fsSubject(OURS, scratch / "ours")
    ours.make()
    subjects = [
        ours,
        NullSubject(CEILING, scratch / "null"),
        PlainDirectory("disk", scratch / "disk"),
    ]
    binary = juicefs()
    if binary is None:
        return subjects, [PEER]
    juice = JuiceSubject(PEER, scratch / "juice", binary)
    juice.make()
    return [*subjects, juice], []


def _table(
    subjects: Sequence[Subject], pool: ProcessPoolExecutor, clients: int, files: int
) -> dict[str, Any]:
    """Return, for each phase, microseconds per file of each subject, and our ratio to the others."""
    places = {
        subject.name: [subject.mountpoint / f"{clients}-{client}" for client in range(clients)]
        for subject in subjects
    }
    for paths in places.values():
        for path in paths:
            path.mkdir()
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
) -> dict[str, float]:
    if PHASES[number].cold:
        machine.drop_kernel_caches(pages=False)
    before = _processor_s(pids)
    taken: dict[str, list[float]] = {name: [] for name in places}
    names = list(places)
    for turn in range(files // TURN_FILES):
        wanted = range(turn * TURN_FILES, (turn + 1) * TURN_FILES)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            work = [[f"{place}/file-{i:011d}" for i in wanted] for place in places[name]]
            seconds = max(pool.map(_turn_s, [number] * len(work), work))
            taken[name].append(seconds / (TURN_FILES * len(work)))
    done = files // TURN_FILES * TURN_FILES * len(places[OURS])
    figures = {f"{name}, us": statistics.median(values) * 1e6 for name, values in taken.items()}
    for name, after in _processor_s(pids).items():
        figures[f"{name}, processor, us"] = (after - before[name]) / done * 1e6
    for name, values in taken.items():
        if name != OURS:
            pairs = [other / own for other, own in zip(values, taken[OURS], strict=True)]
            figures[f"speed against {name}"] = statistics.median(pairs)
    return figures


def _processor_s(pids: dict[str, int]) -> dict[str, float]:
    """Return the daemons' processor time so far, including postponed work."""
    for pid in pids.values():
        machine.settle(pid)
    return {name: machine.cpu_s(pid) for name, pid in pids.items()}
