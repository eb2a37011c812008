"""fio: every section of jobs/verify.fio writes a pattern with checksums and reads it back."""

import configparser
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from contrib.conformance import programs
from contrib.conformance.cases import Case, Outcome
from contrib.conformance.places import Place

SUITE: Final = "fio"
SECONDS_MAX: Final = 900.0
JOB_FILE: Final = Path(__file__).parent / "jobs" / "verify.fio"


def sections() -> list[str]:
    """Return the jobs of the file."""
    parser = configparser.ConfigParser(allow_no_value=True, interpolation=None)
    parser.read(JOB_FILE)
    return [name for name in parser.sections() if name != "global"]


def run(place: Place, only: str | None) -> Iterator[Case]:
    """Run every section on its own file."""
    program = programs.find(SUITE)
    for name in sections():
        if only is None or only in name:
            yield _run(place, program, name)


def _run(place: Place, program: str, name: str) -> Case:
    finished = programs.run(
        [program, f"--directory={place.directory}", f"--section={name}", str(JOB_FILE)],
        directory=place.scratch,
        seconds_max=SECONDS_MAX,
        environment=os.environ,
    )
    for file in place.directory.glob(f"{name}.*"):
        file.unlink()
    if finished.status == 0 and "verify:" not in finished.output:
        return Case(SUITE, name, Outcome.PASSED, seconds=finished.seconds)
    detail = f"status {finished.status}: {programs.tail(finished.output)}"
    return Case(SUITE, name, Outcome.FAILED, detail, finished.seconds)
