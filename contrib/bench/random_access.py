"""Random reads and writes of 4 KiB by fio, on s3fs-meta and the do-nothing filesystem.

fio runs one job with one request at a time (psync), and accesses each offset at most once. The file
is already uploaded, and all its blocks are in the local cache. Before a run, the kernel drops its
pages of the file, but not its pages of the files in the local cache. The time of writes includes a
final sync, because the kernel keeps dirty pages. No changelog is made during a run
(``sync_interval=3600``).
"""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

from contrib.bench import samples, sequential, targets
from contrib.bench.names import CEILING, OURS
from contrib.bench.subjects import NullSubject, S3fsSubject, Subject

RATIO_MIN: Final = 0.9
PHASES: Final = {"read": "randread", "write": "randwrite"}


def run(scratch: Path, *, random_mib: int, operations: int, rounds: int) -> dict[str, object]:
    """Measure both filesystems alternately and return the results."""
    if shutil.which("fio") is None:
        return {"absent": ["fio"]}
    size_bytes = random_mib << 20
    ours = S3fsSubject(OURS, scratch / "ours", options={"sync_interval": "3600"})
    ours.make()
    null = NullSubject(CEILING, scratch / "null", plain_files=True)
    rates: dict[str, dict[str, list[float]]] = {phase: {OURS: [], CEILING: []} for phase in PHASES}
    with null, ours:
        for mounted in (null, ours):
            sequential.write_file(mounted.mountpoint / "file", size_bytes)
        for number in range(rounds):
            for phase, kind in PHASES.items():
                for subject in samples.rotated((null, ours), number):
                    rates[phase][subject.name].append(_rate(subject, kind, operations, number))
    ratios = {phase: 1 / samples.ratio(each[CEILING], each[OURS]) for phase, each in rates.items()}
    return {
        "size_bytes": size_bytes,
        "operations": operations,
        "per second": {
            phase: {
                "ratio": ratios[phase],
                **{name: samples.summary(values) for name, values in each.items()},
            }
            for phase, each in rates.items()
        },
        "targets": [
            targets.at_least(f"{phase}: rate against {CEILING}", ratio, RATIO_MIN, "times")
            for phase, ratio in ratios.items()
        ],
    }


def _rate(subject: Subject, kind: str, operations: int, seed: int) -> float:
    """Run fio; return operations per second. The time includes a sync after the last write."""
    path = subject.mountpoint / "file"
    sequential.forget_pages(path)
    subject.settle()
    command = [
        "fio", "--name=random", f"--filename={path}", f"--rw={kind}", "--bs=4k",
        "--ioengine=psync", f"--number_ios={operations}", f"--randseed={seed}",
        f"--fdatasync={operations - 1}", "--output-format=json",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    return float(found["read" if kind == "randread" else "write"]["iops"])
