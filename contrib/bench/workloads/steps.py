"""The workload steps in order, each with its command, material and required programs.

In a command ``{work}`` stands for the directory of the current turn on the filesystem under test,
``{materials}`` for the directory of input files on the disk, and ``{messages}`` for the number of
mail messages.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from contrib.bench.local_subjects import juicefs
from contrib.bench.names import JUICEFS, OURS
from contrib.bench.subjects import program
from contrib.bench.workloads import materials

INSERTS: Final = 150
LOG_LINES: Final = 20_000
LOG_LINES_PER_FSYNC: Final = 200
SYNCED_FILES: Final = 100
STATUSES: Final = 5

Words = tuple[str, ...]


class Step(NamedTuple):
    """One workload step: a row in the table of results."""

    name: str
    # One command for all filesystems, or a separate command for each filesystem by its name.
    command: Words | Mapping[str, Words]
    material: str = ""
    needs: Words = ()  # Earlier steps whose output the command uses.
    before: Words = ()  # An untimed command that runs before the timed command.
    programs: Words = ()  # Required programs; without them, the step is skipped.
    waits_for_disk: bool = False  # True if the program calls fsync often.
    prints_seconds: bool = False  # True if the command prints its own time.

    def of(self, subject: str) -> Words:
        """Return the command for a filesystem; () if the step skips the filesystem."""
        return self.command.get(subject, ()) if isinstance(self.command, Mapping) else self.command


def filled(command: Words, marks: Mapping[str, str]) -> list[str]:
    """Return *command* with its placeholders replaced by their values."""
    python = (materials.photo_python() if "thumbnails" in command else None) or sys.executable
    for mark, value in {"{python}": python, **marks}.items():
        command = tuple(word.replace(mark, value) for word in command)
    return list(command)


def _program(name: str, *numbers: int | str) -> Words:
    module = "contrib.bench.workloads.programs"
    return ("{python}", "-m", module, name, "{work}", *map(str, numbers))


def _shell(text: str) -> Words:
    return ("sh", "-e", "-c", text)


_CLONE: Final = {
    OURS: (*program(), "clone", "{work}/source", "{work}/cloned"),
    JUICEFS: (str(juicefs()), "clone", "{work}/source", "{work}/cloned"),
}
_RM: Final = {
    OURS: (*program(), "rm", "--wait", "{work}/cloned"),
    JUICEFS: (str(juicefs()), "rmr", "--skip-trash", "{work}/cloned"),
}
_STATUS: Final = "git -C {work}/clone status --short"
_INSTALL: Final = "pip install --quiet --no-index --find-links {materials}/wheels"
STEPS: Final = (
    Step(
        "untar of sources", ("tar", "-xf", "{materials}/source.tar", "-C", "{work}"), "source",
    ),
    Step("find", ("find", "{work}/source", "-type", "f", "-size", "+1000000"), "source",
         needs=("untar of sources",)),
    Step("grep -r", ("grep", "-r", "-l", materials.NEEDLE, "{work}/source"), "source",
         needs=("untar of sources",)),
    Step("cp -a", ("cp", "-a", "{work}/source", "{work}/copy"), "source",
         needs=("untar of sources",)),
    Step("cp -al", ("cp", "-al", "{work}/source", "{work}/links"), "source",
         needs=("untar of sources",)),
    Step("rm -rf of links", ("rm", "-rf", "{work}/links"), "source", needs=("cp -al",)),
    Step("own clone", _CLONE, "source", needs=("untar of sources",)),
    Step("own rm", _RM, "source", needs=("own clone",)),
    Step("rsync, nothing to do", ("rsync", "-a", "{materials}/source/", "{work}/source/"), "source",
         needs=("untar of sources",), programs=("rsync",)),
    Step("rm -rf of both trees", ("rm", "-rf", "{work}/source", "{work}/copy"), "source",
         needs=("untar of sources", "cp -a")),
    Step("git clone", ("git", "clone", "-q", "file://{materials}/repository.git", "{work}/clone"),
         "repository", programs=("git",)),
    Step("git status, 5 times", _shell("\n".join([_STATUS] * STATUSES)), "repository",
         needs=("git clone",), programs=("git",)),
    Step("git gc", ("git", "-C", "{work}/clone", "gc", "-q"), "repository",
         needs=("git clone",), programs=("git",)),
    Step("make -j2", ("make", "-s", "-j2", "-C", "{work}/project"), "project",
         before=("tar", "-xf", "{materials}/project.tar", "-C", "{work}"), programs=("make", "cc")),
    Step("venv, pip install", _shell(
        "{python} -m venv {work}/venv\n{work}/venv/bin/" + " ".join([_INSTALL, *materials.WHEELS])
    ), "wheels"),
    Step("npm ci", _shell(
        "cd {work}/node; npm ci --offline --no-audit --no-fund --cache {materials}/npm-cache"
    ), "node", before=("cp", "-r", "{materials}/node", "{work}"), programs=("npm",)),
    Step("SQLite inserts, DELETE", _program("sqlite_delete", INSERTS), waits_for_disk=True,
         prints_seconds=True),
    Step("SQLite inserts, WAL", _program("sqlite_wal", INSERTS), waits_for_disk=True,
         prints_seconds=True),
    Step("small files, each fsynced", _program("small_synced", SYNCED_FILES), waits_for_disk=True,
         prints_seconds=True),
    Step("log", _program("log", LOG_LINES, LOG_LINES_PER_FSYNC), waits_for_disk=True,
         prints_seconds=True),
    Step("maildir, deliver", _program("mail_deliver", "{messages}"), waits_for_disk=True,
         prints_seconds=True),
    Step("maildir, read", _program("mail_read", "{messages}"), needs=("maildir, deliver",),
         prints_seconds=True),
    Step("thumbnails", _program("thumbnails"), "photos",
         before=("cp", "-r", "{materials}/photos", "{work}"), programs=("Pillow",),
         prints_seconds=True),
)  # fmt: skip
BY_NAME: Final = {step.name: step for step in STEPS}


def chosen(only: Sequence[str]) -> tuple[list[Step], list[str]]:
    """Return the steps to run, in order, and the skipped steps with their missing programs.

    Args: only: prefixes of step names; the steps that they depend on are added. Empty for all
    steps.

    Raises: ValueError: no step's name begins with one of the prefixes.
    """
    for word in only:
        if not any(name.startswith(word) for name in BY_NAME):
            raise ValueError(f"no step name begins with {word!r}; steps: {', '.join(BY_NAME)}")
    wanted = {name for name in BY_NAME if not only or name.startswith(tuple(only))}
    for step in reversed(STEPS):
        wanted |= set(step.needs) if step.name in wanted else set()
    missing = {
        step.name: [each for each in step.programs if not _installed(each)] for step in STEPS
    }
    run = [step for step in STEPS if step.name in wanted and not missing[step.name]]
    skipped = [f"{name}: no {', '.join(missing[name])}" for name in BY_NAME
               if name in wanted and missing[name]]  # fmt: skip
    return run, skipped


def _installed(program: str) -> bool:
    if program == "Pillow":
        return materials.photo_python() is not None
    return shutil.which(program) is not None
