"""The cost of the history index on create, write and unlink.

Mounts with and without the index alternate and do the same work. The CPU time of the daemon
includes uploading all changes and creating all index objects that are due.

The measurement at the default interval creates, writes and unlinks files without a pause for
*turn_s* seconds, while a transaction group is shipped every five seconds. A second mount without
the index shows how much the results of two equal mounts differ.

The measurement with frequent transaction groups ships one group per *txg_files* files, which no
mount does by default. It shows the cost of one transaction group, and has no target.

No mount option turns the index off, so this module starts the daemons with a changed interval.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from contrib.bench import samples, targets
from contrib.bench.subjects import S3fsSubject
from s3fs_meta.cli.start import program
from s3fs_meta.control import plain_call
from s3fs_meta.limits import HISTORY_CHECK_S, HISTORY_FAN_OUT
from s3fs_meta.sync.chain.chain import FetchedChangelog
from s3fs_meta.sync.history.index import index_writer

CHECK_S: Final = 0.5  # Check interval of the index writer in the measurement with frequent txgs.
NEVER_S: Final = 1e9
COST_MAX: Final = 1.05
PHASES: Final = ("create", "write", "unlink")
CONTENT: Final = b"x" * 4096


class IndexSubject(S3fsSubject):
    """A mount whose index writer checks for work at a given interval, or never."""

    def __init__(self, name: str, root: Path, check_s: float, **options: str) -> None:
        """Prepare a mount on a new bucket; the index writer checks every *check_s* seconds."""
        root.mkdir(parents=True)
        super().__init__(name, root, options=options)
        self._check_s = check_s

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        words = super().command()
        arguments = words[words.index("mount") :]
        return [sys.executable, "-m", "contrib.bench.history_cost", str(self._check_s), *arguments]

    @override
    def settle(self) -> None:
        """Wait until all data is in the bucket and the daemon is idle."""
        self.flush()
        self.rest()

    def flush(self) -> None:
        """Ask the daemon to upload all changes, without starting a command."""
        [state] = {path.parent for path in self.state.glob("*/control.sock")}
        plain_call.call(state, "flush", {})

    def index_objects(self) -> int:
        """Return the number of index objects in the bucket."""
        return sum(path.is_file() for path in self.bucket.rglob("history/*/*"))


def run(
    scratch: Path, *, files: int, txg_files: int, rounds: int, turn_s: int, window: int
) -> dict[str, object]:
    """Measure *rounds* turns of each mount, at the default interval and with frequent txgs.

    Args:
        scratch: an empty directory.
        files: number of files in a turn with frequent txgs.
        txg_files: number of files after which such a turn ships a txg.
        rounds: number of turns of each mount.
        turn_s: duration of a turn at the default interval.
        window: number of files that exist at a time in a turn at the default interval. It must be
            so large that no file is unlinked in the txg that created it.
    """
    by_default = _by_default(scratch / "default", rounds, turn_s, window)
    return {
        "default_interval": by_default,
        "frequent_txgs": _frequent(scratch / "frequent", files, txg_files, rounds),
        "targets": [
            targets.at_most(
                "CPU time of an operation with the history index, relative to none",
                by_default["with_relative_to_without"],
                COST_MAX,
            )
        ],
    }


@dataclass
class _Use:
    """One mount in the measurement at the default interval."""

    mount: IndexSubject
    window: int
    created: int = 0
    # The number of created files after each turn.
    files: list[int] = field(default_factory=list)
    # The CPU time of the daemon before each turn, and after the last turn.
    cpu_s: list[float] = field(default_factory=list)

    def ship_txgs(self, count: int) -> None:
        """Ship transaction groups in advance, so that the turns include an index object."""
        for number in range(count):
            (self.mount.mountpoint / f"before-{number}").touch()
            self.mount.flush()

    def work(self, turn_s: float) -> None:
        """Create and write files, and unlink the earliest files, for *turn_s* seconds."""
        self.cpu_s.append(self.mount.cpu_s())
        end_s = time.monotonic() + turn_s
        while time.monotonic() < end_s:
            self._path(self.created).write_bytes(CONTENT)
            self.created += 1
            if self.created > self.window:
                self._path(self.created - self.window - 1).unlink()
        self.mount.settle()
        self.files.append(self.created)

    def _path(self, number: int) -> Path:
        folder = self.mount.mountpoint / f"folder-{number // 1000}"
        if number % 1000 == 0:
            folder.mkdir(exist_ok=True)
        return folder / f"file-{number}"

    def ms_per_file(self) -> list[float]:
        """Return the CPU time per file in each turn, without the first turn."""
        spent = zip(self.cpu_s[1:], self.cpu_s[2:], self.files, self.files[1:], strict=False)
        return [1e3 * (cpu - before) / (done - first) for before, cpu, first, done in spent]

    def mean_ms(self) -> float:
        """Return the mean CPU time per file, without the first turn."""
        return 1e3 * (self.cpu_s[-1] - self.cpu_s[1]) / (self.files[-1] - self.files[0])


def _by_default(scratch: Path, rounds: int, turn_s: int, window: int) -> dict[str, Any]:
    """Alternate between one mount with the index and two mounts without it.

    The CPU time of a turn is measured until the mount's next turn, because the index writer may
    check for work only after the turn (HISTORY_CHECK_S). Only a few turns create index objects, so
    the target applies to the mean of all turns.
    """
    checks = {"with": HISTORY_CHECK_S, "without": NEVER_S, "without, again": NEVER_S}
    uses = [
        _Use(IndexSubject(name, scratch / str(number), check_s), window)
        for number, (name, check_s) in enumerate(checks.items())
    ]
    for use in uses:
        use.mount.make()
    with uses[0].mount, uses[1].mount, uses[2].mount:
        for use in uses:
            use.ship_txgs(HISTORY_FAN_OUT // 2)
        for turn in range(-1, rounds):  # Turn -1 is a warm-up, which the results exclude.
            for use in samples.rotated(uses, turn):
                use.work(turn_s)
        time.sleep(HISTORY_CHECK_S)
        for use in uses:
            use.mount.settle()
            use.cpu_s.append(use.mount.cpu_s())
    with_index, without, again = uses
    return {
        "turn_s": turn_s,
        "window": window,
        "files": {use.mount.name: use.created for use in uses},
        "index_objects": {use.mount.name: use.mount.index_objects() for use in uses},
        "cpu_ms_per_file": {use.mount.name: samples.summary(use.ms_per_file()) for use in uses},
        "mean_cpu_ms_per_file": {use.mount.name: use.mean_ms() for use in uses},
        "with_relative_to_without": 2
        * with_index.mean_ms()
        / (without.mean_ms() + again.mean_ms()),
        "without_relative_to_without": again.mean_ms() / without.mean_ms(),
    }


def _frequent(scratch: Path, files: int, txg_files: int, rounds: int) -> dict[str, object]:
    """Alternate between mounts with and without the index; ship a txg after *txg_files* files."""
    checks = {"with": CHECK_S, "without": NEVER_S}
    mounts = [
        IndexSubject(name, scratch / name, check_s, sync_interval="3600")
        for name, check_s in checks.items()
    ]
    taken: dict[str, dict[str, list[float]]] = {
        one.name: {phase: [] for phase in (*PHASES, "all")} for one in mounts
    }
    for one in mounts:
        one.make()
    with mounts[0], mounts[1]:
        for turn in range(-1, rounds):  # Turn -1 is a warm-up, which the results exclude.
            for one in samples.rotated(mounts, turn):
                found = _turn(one, turn, files, txg_files)
                for phase, cpu_s in found.items() if turn >= 0 else ():
                    taken[one.name][phase].append(cpu_s)
    ratios = {
        phase: [a / b for a, b in zip(taken["with"][phase], values, strict=True)]
        for phase, values in taken["without"].items()
    }
    return {
        "files": files,
        "txg_files": txg_files,
        "index_objects": {one.name: one.index_objects() for one in mounts},
        "cpu_s": {
            name: {phase: samples.summary(values) for phase, values in phases.items()}
            for name, phases in taken.items()
        },
        "with_relative_to_without": {
            phase: samples.summary(values) for phase, values in ratios.items()
        },
    }


def _turn(subject: IndexSubject, turn: int, files: int, txg_files: int) -> dict[str, float]:
    """Create, write and unlink files; return the CPU time of the daemon in each phase."""
    folder = subject.mountpoint / f"turn-{turn}"
    folder.mkdir()
    paths = [folder / f"file-{number}" for number in range(files)]
    batches = [paths[at : at + txg_files] for at in range(0, files, txg_files)]
    began_s = subject.cpu_s()
    found = {
        "create": _cpu_s(subject, batches, lambda path: path.touch()),
        "write": _cpu_s(subject, batches, lambda path: path.write_bytes(CONTENT)),
        "unlink": _cpu_s(subject, batches, lambda path: path.unlink()),
    }
    subject.settle()
    time.sleep(2 * CHECK_S)
    subject.settle()
    return {**found, "all": subject.cpu_s() - began_s}


def _cpu_s(
    subject: IndexSubject, batches: list[list[Path]], work: Callable[[Path], object]
) -> float:
    began_s = subject.cpu_s()
    for batch in batches:
        for path in batch:
            work(path)
        subject.flush()
    subject.settle()
    return subject.cpu_s() - began_s


async def _ignore(_indexer: index_writer.Indexer, _fetched: FetchedChangelog) -> None:
    """Discard the changes of a changelog instead of keeping them for the index."""


def _serve() -> None:
    """Serve a mount; the first argument is the check interval of the index writer in seconds."""
    check_s = float(sys.argv.pop(1))
    vars(index_writer)["HISTORY_CHECK_S"] = check_s
    if check_s == NEVER_S:
        type.__setattr__(index_writer.Indexer, "take", _ignore)
    program()


if __name__ == "__main__":
    _serve()
