"""Work on directory trees on a used mount, compared with a new mount and with other filesystems.

The used mount has *cached* files of 4 KiB in its cache and in the bucket, and *txgs* transaction
groups of a simulated week in its history. The benchmark runs the steps of ``workloads`` that
unpack, search, copy and remove a tree of *files* files. The steps alternate between all
filesystems.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import trio

from contrib.bench import fill, history, local_subjects, targets
from contrib.bench.names import CEILING, JUICEFS, OURS, PASSTHROUGH, USED
from contrib.bench.subjects import S3fsSubject
from contrib.bench.workloads import session, steps

# The history is made in memory. On the disk, each of its many objects would be synced.
MEMORY: Final = Path("/dev/shm")
STEPS: Final = ("untar of sources", "find", "cp -a", "rm -rf of both trees")
CEILING_RATIO_MAX: Final = 1.2
AHEAD_OF_JUICEFS_MIN: Final = 2.0


def run(scratch: Path, *, files: int, cached: int, txgs: int, turns: int) -> dict[str, Any]:
    """Measure the steps on a used mount of *cached* files and *txgs* transaction groups."""
    used = S3fsSubject(USED, scratch / "used")
    _make_history(used, txgs)
    archive = fill.archive(scratch, cached)
    with used:
        subprocess.run(["tar", "-xf", archive.path, "-C", used.mountpoint], check=True)
        used.settle()
    archive.path.unlink()
    names = (PASSTHROUGH, CEILING, OURS, JUICEFS)
    here, absent = local_subjects.available(scratch, names)
    todo, _skipped = steps.chosen(STEPS)
    work = session.Work(todo, files, 0, turns)
    table, failed, _memory = session.measure(scratch, work, [*here, used])
    figures = session.summarized({name: table[name] for name in STEPS})
    return {
        "files": files,
        "cached": cached,
        "txgs": txgs,
        "turns": turns,
        "absent": absent,
        "failed": [f"{where}: {why}" for where, why in failed.items()],
        **figures,
        "targets": _targets(figures[f"of {CEILING}"]),
    }


def _make_history(used: S3fsSubject, txgs: int) -> None:
    """Make a filesystem with *txgs* transaction groups in the bucket of an unmounted subject."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else used.root) as folder:
        writer = S3fsSubject(USED, Path(folder))
        writer.make()
        with writer:
            pass  # The first mount creates the database.
        trio.run(history.ship_txgs, writer, txgs)
        shutil.copytree(writer.bucket, used.bucket)


def _targets(ratios: dict[str, dict[str, float]]) -> list[targets.Target]:
    """Return the targets of each step for the new and the used mount."""
    wanted = []
    for step, row in ratios.items():
        for mount in (OURS, USED):
            if mount not in row:
                continue
            what = f"{step}, {mount}: time against {CEILING}"
            wanted.append(targets.at_most(what, row[mount], CEILING_RATIO_MAX, "times"))
            if JUICEFS in row:
                ahead = row[JUICEFS] / row[mount]
                what = f"{step}, {mount}: speed against {JUICEFS}"
                wanted.append(targets.at_least(what, ahead, AHEAD_OF_JUICEFS_MIN, "times"))
    return wanted
