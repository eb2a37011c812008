"""One run of a command: its output, wall time, CPU time and peak memory.

``python -m contrib.bench.measured_command RESULT COMMAND…`` runs the command, and writes the
measurements to the file RESULT. This small process is the parent of the command, because a child's
``ru_maxrss`` includes the memory of its parent from before exec.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from contrib.bench.subjects import call


class CommandRun(NamedTuple):
    """The results of one run of a command."""

    output: str
    seconds: float
    cpu_s: float
    peak_mb: float  # Resident memory of the process.


def run(*command: str) -> CommandRun:
    """Run a command to completion; return its output and measurements.

    Raises:
        SubjectError: the command failed.
    """
    with tempfile.TemporaryDirectory(prefix="bench-command-") as folder:
        result = Path(folder, "result")
        output = call(sys.executable, "-m", "contrib.bench.measured_command", result, *command)
        found = json.loads(result.read_text())
    return CommandRun(output, found["seconds"], found["cpu_s"], found["peak_mb"])


def main(result: str, *command: str) -> int:
    """Run the command, write the measurements, and return the exit status of the command."""
    began_s = time.perf_counter()
    done = subprocess.run(command, check=False)
    taken_s = time.perf_counter() - began_s
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "seconds": taken_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
    }
    Path(result).write_text(json.dumps(found))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
