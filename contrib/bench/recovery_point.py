"""The age of changes that are not in the bucket, while tar unpacks many small files.

Several times a second the benchmark runs ``status``, which reports the age of the oldest change
that is not in the bucket. The target compares these ages with the option ``sync_interval``.
"""

import json
import subprocess
import time
from pathlib import Path
from typing import Final

from contrib.bench import fill, targets
from contrib.bench.subjects import S3fsSubject, call

PAUSE_S: Final = 0.25
INTERVAL_S: Final = 5.0
# Maximum ratio of the 99th percentile of the age of changes to the sync interval.
RATIO_MAX: Final = 2.0


def run(scratch: Path, *, untar: int) -> dict[str, object]:
    """Unpack *untar* small files; meanwhile sample the age of the oldest unshipped change."""
    archive = fill.archive(scratch, untar)
    subject = S3fsSubject(
        "s3fs-meta", scratch / "subject", options={"sync_interval": f"{INTERVAL_S:g}"}
    )
    subject.make()
    with subject:
        start = time.monotonic()
        tar = subprocess.Popen(["tar", "-xf", archive.path, "-C", subject.mountpoint])
        ages = []
        while tar.poll() is None:
            ages.append(_age_s(subject))
            time.sleep(PAUSE_S)
        taken_s = time.monotonic() - start
        assert tar.returncode == 0, f"tar: status {tar.returncode}"
    ordered = sorted(ages)
    p99_s = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
    return {
        "files": untar,
        "sync_interval_s": INTERVAL_S,
        "untar_seconds": taken_s,
        "samples": len(ages),
        "median_s": ordered[len(ordered) // 2],
        "p99_s": p99_s,
        "max_s": ordered[-1],
        "p99_to_interval": p99_s / INTERVAL_S,
        "targets": [
            targets.at_most(
                "age of the oldest change against the interval, 99 %",
                p99_s / INTERVAL_S,
                RATIO_MAX,
                "times",
            )
        ],
    }


def _age_s(subject: S3fsSubject) -> float:
    return float(json.loads(call(*subject.words("status", "--json")))["chain"]["unshipped_age_s"])
