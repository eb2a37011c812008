"""fsx: random reads, writes, truncates and mmap accesses of one file, compared with a copy.

Every configuration of jobs/fsx-*.toml is run with several seeds. The name of a case contains the
configuration and the seed. A seed always produces the same operations, so a failure can be
repeated.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from contrib.conformance import programs
from contrib.conformance.cases import Case, Outcome
from contrib.conformance.places import Place

SUITE: Final = "fsx"
SECONDS_MAX: Final = 1800.0
CONFIGURATIONS: Final = sorted((Path(__file__).parent / "jobs").glob("fsx-*.toml"))


def run(place: Place, only: str | None, *, seeds: int, operations: int) -> Iterator[Case]:
    """Run every configuration with seeds 1 to *seeds*."""
    program = programs.find(SUITE)
    for configuration in CONFIGURATIONS:
        for seed in range(1, seeds + 1):
            name = f"{configuration.stem.removeprefix('fsx-')}-seed{seed}"
            if only is None or only in name:
                yield _run(place, program, configuration, name, seed, operations)


def _run(
    place: Place, program: str, configuration: Path, name: str, seed: int, operations: int
) -> Case:
    file = place.directory / name
    command = [program, "-N", str(operations), "-S", str(seed), "-f", str(configuration)]
    finished = programs.run(
        [*command, "-P", str(place.scratch), str(file)],
        directory=place.scratch,
        seconds_max=SECONDS_MAX,
        environment={**os.environ, "NO_COLOR": "1", "RUST_BACKTRACE": "0"},
    )
    file.unlink(missing_ok=True)
    if finished.status == 0:
        return Case(SUITE, name, Outcome.PASSED, seconds=finished.seconds)
    detail = f"status {finished.status}: {programs.tail(finished.output)}"
    return Case(SUITE, name, Outcome.FAILED, detail, finished.seconds)
