"""The time to create, search and remove a tree of files, for each journal mode.

Each journal mode has its own mount. All mounts exist at the same time and take turns in a changing
order. A turn creates or removes 16 directories of empty files. The file names are hashes, as in a
cache. Each round repeats all turns on the same filesystems. ``find`` reads the attributes of all
files after the kernel has dropped its dentries. CPU time includes all threads of the daemon, and
work that the daemon does after the turn. No txg is shipped during the measurement
(``sync_interval=3600``). A ratio compares a turn with the same turn of off/off; the result is the
median of the ratios.
"""

import hashlib
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from contrib.bench import machine, samples, targets
from contrib.bench.subjects import S3fsSubject

REFERENCE: Final = "off/off"
DEFAULT: Final = "wal/normal"
MODES: Final = (
    REFERENCE, "wal/off", DEFAULT, "wal/full",
    "memory/off", "delete/normal", "truncate/normal", "persist/normal",
)  # fmt: skip
TURN_FILES: Final = 500
DIRECTORIES: Final = 16
FINDS: Final = 8  # Number of find commands for each journal mode in each round.
# A pause in which the open commit group ends (GROUP_DELAY_S after its last operation).
LEFT_S: Final = 0.03
CHANGE_MAX: Final = 1.05
FIND_MAX: Final = 1.10


class Taken(NamedTuple):
    """The times of one turn with one journal mode."""

    wall_s: float
    cpu_s: float  # CPU time of the daemon in seconds.


def run(scratch: Path, *, files: int, rounds: int) -> dict[str, object]:
    """Measure all journal modes in full turns and return the results."""
    files = samples.full_turns(files, TURN_FILES) * TURN_FILES
    with ExitStack() as stack:
        mounts = [_subject(scratch, mode) for mode in MODES]
        for mount in mounts:
            stack.enter_context(mount)
        taken: dict[str, dict[str, list[Taken]]] = {
            phase: {mode: [] for mode in MODES} for phase in ("create", "find", "delete")
        }
        for number in range(rounds):
            _round(mounts, taken, number, files)
    entries = files + files // TURN_FILES * (DIRECTORIES + 1)
    per_find = {"create": TURN_FILES, "find": entries, "delete": TURN_FILES}
    phases = {phase: _figures(each, per_find[phase]) for phase, each in taken.items()}
    return {
        "files": files,
        "rounds": rounds,
        **phases,
        "targets": [
            targets.at_most(
                f"{phase}: processor time of {DEFAULT} against {REFERENCE}",
                phases[phase][DEFAULT]["processor, of off/off"],
                most,
                "times",
            )
            for phase, most in {
                "create": CHANGE_MAX, "delete": CHANGE_MAX, "find": FIND_MAX,
            }.items()
        ],
    }  # fmt: skip


def _subject(scratch: Path, mode: str) -> S3fsSubject:
    journal_mode, _, synchronous = mode.partition("/")
    options = {
        "journal_mode": journal_mode, "synchronous": synchronous, "sync_interval": "3600",
    }  # fmt: skip
    subject = S3fsSubject(mode, scratch / mode.replace("/", "-"), options=options)
    subject.make()
    return subject


def _round(
    mounts: Sequence[S3fsSubject],
    taken: Mapping[str, Mapping[str, list[Taken]]],
    number: int,
    files: int,
) -> None:
    """With each journal mode, create, search and remove all trees once."""
    turns = range(files // TURN_FILES)
    for turn in turns:
        for subject in samples.rotated(mounts, turn + number):
            place = subject.mountpoint / f"{turn:03x}"
            taken["create"][subject.name].append(_timed(subject, lambda at=place: _make(at)))
    for turn in range(FINDS):
        for subject in samples.rotated(mounts, turn + number):
            machine.drop_kernel_caches(pages=False)
            taken["find"][subject.name].append(_timed(subject, lambda of=subject: _search(of)))
    for turn in turns:
        for subject in samples.rotated(mounts, turn + number):
            place = subject.mountpoint / f"{turn:03x}"
            taken["delete"][subject.name].append(
                _timed(subject, lambda at=place: shutil.rmtree(at))
            )


def _timed(subject: S3fsSubject, work: Any) -> Taken:
    time.sleep(LEFT_S)
    before_s = subject.cpu_s()
    wall_s = samples.seconds(work)
    time.sleep(LEFT_S)
    return Taken(wall_s, subject.cpu_s() - before_s)


def _make(place: Path) -> None:
    """Make directories of empty files; the names of the files are hashes, as in a cache."""
    place.mkdir()
    for number in range(DIRECTORIES):
        (place / f"{number:02x}").mkdir()
    for number in range(TURN_FILES):
        name = hashlib.sha1(b"%d" % number).hexdigest()
        path = f"{place}/{int(name[0], 16):02x}/{name}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _search(subject: S3fsSubject) -> None:
    command = ["find", str(subject.mountpoint), "-size", "+1000000"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _figures(taken: Mapping[str, Sequence[Taken]], per: int) -> dict[str, dict[str, Any]]:
    """Return microseconds per file for each journal mode, and the ratios to the mode off/off."""
    reference = taken[REFERENCE]
    return {
        mode: {
            "wall_us": samples.summary([each.wall_s / per * 1e6 for each in turns]),
            "processor, us": samples.summary([each.cpu_s / per * 1e6 for each in turns]),
            "wall, of off/off": statistics.median(
                each.wall_s / other.wall_s for each, other in zip(turns, reference, strict=True)
            ),
            "processor, of off/off": statistics.median(
                each.cpu_s / other.cpu_s for each, other in zip(turns, reference, strict=True)
            ),
        }
        for mode, turns in taken.items()
    }
