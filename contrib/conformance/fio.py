"""fio: each section of jobs/verify.fio writes data with checksums and verifies the data."""

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


def sections() -> dict[str, bool]:
    """Return for each job of the file whether a second run can verify its data.

    A second run cannot verify a mixture of reads and writes, because the written positions are
    unknown. A second run also fails for blocks of varying size, even on ext4, because fio expects
    blocks beyond the end of the file.
    """
    parser = configparser.ConfigParser(allow_no_value=True, interpolation=None)
    parser.read(JOB_FILE)
    return {
        name: parser[name]["rw"] != "randrw" and "bsrange" not in parser[name]
        for name in parser.sections()
        if name != "global"
    }


def run(place: Place, only: str | None) -> Iterator[Case]:
    """Run each section on its own files: write, verify, drop caches, and verify again."""
    program = programs.find(SUITE)
    for name, repeatable in sections().items():
        if only is None or only in name:
            first = _run(place, program, name, again=False)
            yield first
            if repeatable and first.outcome is Outcome.PASSED:
                _forget_pages(place, name)
                yield _run(place, program, name, again=True)
            for file in place.directory.glob(f"{name}.*"):
                file.unlink()


def _forget_pages(place: Place, name: str) -> None:
    """Drop the kernel's cached pages of the files, so that reads reach the filesystem."""
    for path in place.directory.glob(f"{name}.*"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(place: Place, program: str, name: str, *, again: bool) -> Case:
    finished = programs.run(
        [program, f"--directory={place.directory}", f"--section={name}", str(JOB_FILE)],
        directory=place.scratch,
        seconds_max=SECONDS_MAX,
        environment={**os.environ, "VERIFY_ONLY": str(int(again))},
    )
    case = f"{name}-again" if again else name
    if finished.status == 0 and "verify:" not in finished.output:
        return Case(SUITE, case, Outcome.PASSED, seconds=finished.seconds)
    why = [line for line in finished.output.splitlines() if "verify" in line or "fio: " in line]
    detail = f"status {finished.status}: " + ("\n".join(why[:6]) or programs.tail(finished.output))
    return Case(SUITE, case, Outcome.FAILED, detail, finished.seconds)
