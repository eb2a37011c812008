"""The cost of the history index on create, write and unlink.

Two mounts alternate on the same work: one creates index objects, the other does not. A transaction
group is shipped for every *txg_files* files, more often than by default, so the result overstates
the cost. The CPU time is that of the daemon, until all changes are in the bucket and the due index
objects were created. The index has no mount option, so this module starts the daemons.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from typing_extensions import override

from contrib.bench import samples, targets
from contrib.bench.subjects import S3fsSubject
from s3fs_meta.cli.start import program
from s3fs_meta.control import plain_call
from s3fs_meta.sync.chain.chain import FetchedChangelog
from s3fs_meta.sync.history import index_writer

CHECK_S: Final = 0.5  # interval of the index writer, instead of HISTORY_CHECK_S
NEVER_S: Final = 1e9
# One txg for each 100 operations; by default, a txg contains the operations of five seconds.
COST_MAX: Final = 1.1
PHASES: Final = ("create", "write", "unlink")


class IndexSubject(S3fsSubject):
    """A mount that creates index objects often, or never."""

    def __init__(self, name: str, root: Path, *, indexes: bool) -> None:
        """Prepare a mount on a new bucket."""
        root.mkdir()
        super().__init__(name, root, options={"sync_interval": "3600"})
        self._check_s = CHECK_S if indexes else NEVER_S

    @override
    def command(self) -> list[str]:
        """Return the command that serves the mount in the foreground."""
        words = super().command()
        arguments = words[words.index("mount") :]
        return [sys.executable, "-m", "contrib.bench.history_cost", str(self._check_s), *arguments]


def run(scratch: Path, *, files: int, txg_files: int, rounds: int) -> dict[str, object]:
    """Measure *rounds* turns of each mount, with *files* files in each turn."""
    mounts = [
        IndexSubject(name, scratch / name, indexes=name == "with") for name in ("with", "without")
    ]
    taken: dict[str, dict[str, list[float]]] = {
        one.name: {phase: [] for phase in (*PHASES, "all")} for one in mounts
    }
    for one in mounts:
        one.make()
    with mounts[0], mounts[1]:
        for turn in range(-1, rounds):  # the first turn is not counted
            for one in samples.rotated(mounts, turn):
                found = _turn(one, turn, files, txg_files)
                for phase, cpu_s in found.items() if turn >= 0 else ():
                    taken[one.name][phase].append(cpu_s)
    objects = {
        one.name: sum(path.is_file() for path in one.bucket.rglob("history/*/*")) for one in mounts
    }
    ratios = {
        phase: [a / b for a, b in zip(taken["with"][phase], values, strict=True)]
        for phase, values in taken["without"].items()
    }
    return {
        "files": files,
        "txg_files": txg_files,
        "index_objects": objects,
        "cpu_s": {
            name: {phase: samples.summary(values) for phase, values in phases.items()}
            for name, phases in taken.items()
        },
        "with_relative_to_without": {
            phase: samples.summary(values) for phase, values in ratios.items()
        },
        "targets": [
            targets.at_most(
                "CPU time with the history index, relative to none",
                statistics.median(ratios["all"]),
                COST_MAX,
            )
        ],
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
        "write": _cpu_s(subject, batches, lambda path: path.write_bytes(b"x" * 4096)),
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
    [state] = {path.parent for path in subject.state.glob("*/control.sock")}
    for batch in batches:
        for path in batch:
            work(path)
        plain_call.call(state, "flush", {})
    subject.settle()
    return subject.cpu_s() - began_s


async def _ignore(_indexer: index_writer.Indexer, _fetched: FetchedChangelog) -> None:
    """Discard the changes of a changelog instead of keeping them for the index."""


def _serve() -> None:
    """Serve a mount whose index writer checks at the interval of the first argument."""
    check_s = float(sys.argv.pop(1))
    vars(index_writer)["HISTORY_CHECK_S"] = check_s
    if check_s == NEVER_S:
        type.__setattr__(index_writer.Indexer, "take", _ignore)
    program()


if __name__ == "__main__":
    _serve()
