"""Empty and small files on s3fs-meta, on what others use, and on the ceilings, in turns.

Each subject does the same with a directory of its own, a few hundred files at a time, in an order
that changes from turn to turn, so that a disturbance of the machine falls on all of them. A figure
is the median over the turns; a ratio is the median over pairs of turns.
stat is asked after the kernel dropped its entries, so that each is a request to the daemon.
With several clients each has a directory of its own.
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
from typing import Final, NamedTuple

from typing_extensions import override

from contrib.bench import machine
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
    """Do one phase to some files; return the seconds. Runs in a process of its own."""
    one = PHASES[number].one
    start = time.perf_counter()
    for path in paths:
        one(path)
    return time.perf_counter() - start


# --- who does it -------------------------------------------------------------------------------


def run(scratch: Path, *, files: int) -> dict[str, object]:
    """Measure all subjects that are here and return the figures."""
    with ExitStack() as stack:
        subjects, absent = _subjects(scratch)
        for subject in subjects:
            stack.enter_context(subject)
        pool = stack.enter_context(ProcessPoolExecutor(max(CLIENTS)))
        tables = {
            f"{clients} client{'s' * (clients > 1)}": _table(subjects, pool, clients, files)
            for clients in CLIENTS
        }
    return {"files": files, "absent": absent, **tables}


def _subjects(scratch: Path) -> tuple[list[Subject], list[str]]:
    ours = S3fsSubject(OURS, scratch / "ours")
    ours.make()
    subjects = [
        ours,
        NullSubject("do-nothing", scratch / "null"),
        PlainDirectory("disk", scratch / "disk"),
    ]
    binary = juicefs()
    if binary is None:
        return subjects, ["JuiceFS"]
    juice = JuiceSubject("JuiceFS", scratch / "juice", binary)
    juice.make()
    return [*subjects, juice], []


def _table(
    subjects: Sequence[Subject], pool: ProcessPoolExecutor, clients: int, files: int
) -> dict[str, object]:
    """Return, for each phase, microseconds per file of each subject, and our ratio to the others."""
    places = {
        subject.name: [subject.mountpoint / f"{clients}-{client}" for client in range(clients)]
        for subject in subjects
    }
    for paths in places.values():
        for path in paths:
            path.mkdir()
    return {phase.name: _phase(number, places, pool, files) for number, phase in enumerate(PHASES)}


def _phase(
    number: int, places: dict[str, list[Path]], pool: ProcessPoolExecutor, files: int
) -> dict[str, object]:
    if PHASES[number].cold:
        machine.drop_kernel_caches(pages=False)
    taken: dict[str, list[float]] = {name: [] for name in places}
    names = list(places)
    for turn in range(files // TURN_FILES):
        wanted = range(turn * TURN_FILES, (turn + 1) * TURN_FILES)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            work = [[f"{place}/file-{i:011d}" for i in wanted] for place in places[name]]
            seconds = max(pool.map(_turn_s, [number] * len(work), work))
            taken[name].append(seconds / (TURN_FILES * len(work)))
    figures: dict[str, object] = {
        f"{name}, us": statistics.median(values) * 1e6 for name, values in taken.items()
    }
    for name, values in taken.items():
        if name != OURS:
            pairs = [other / own for other, own in zip(values, taken[OURS], strict=True)]
            figures[f"speed against {name}"] = statistics.median(pairs)
    return figures
