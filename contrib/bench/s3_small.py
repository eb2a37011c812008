"""The time and requests needed to write and read many small files in a remote bucket.

The benchmark unpacks a tar archive and waits until all files are in the bucket. Then it mounts the
filesystem without local state and reads the files in the order in which they were written. The
proxy that adds the delay counts all requests for data, metadata, mount and unmount. Other
filesystems get fewer files, because they send at least one request per file and would need hours.
"""

import subprocess
import time
from pathlib import Path
from typing import Any, Final

from contrib.bench import far_store, far_subjects, fill, machine, targets
from contrib.bench.far_subjects import FarS3fsSubject, FarSubject
from contrib.bench.fill import Archive
from contrib.bench.names import JUICEFS, OURS

PUTS_MAX: Final = 100  # Maximum number of PUT requests for 10,000 files with metadata.
GETS_MAX: Final = 60
_WRITES: Final = ("PUT", "POST")


def run(scratch: Path, *, untar: int, peer_files: int, delay_ms: float) -> dict[str, object]:
    """Measure all installed filesystems; measure s3fs-meta alone if *peer_files* is 0."""
    with far_store.running(scratch, delay_ms) as store:
        others, absent = far_subjects.peers(scratch, store) if peer_files else ([], [])
        ours = _measure(FarS3fsSubject(scratch / "ours", store), fill.archive(scratch, untar))
        few = fill.archive(scratch, peer_files)
        figures = {subject.name: _measure(subject, few) for subject in others}
    puts = sum(ours[step][kind] for step in ("unpacked", "unmounted") for kind in _WRITES)
    gets = ours["mounted"]["GET"] + ours["read"]["GET"]
    wanted = [
        targets.at_most(f"PUTs for {untar:,} files", puts, PUTS_MAX),
        targets.at_most(f"GETs to read {untar:,} files", gets, GETS_MAX),
    ]
    if JUICEFS in figures:
        what = f"cold read of small files: speed against {JUICEFS}"
        ahead = figures[JUICEFS]["read_ms_per_file"] / ours["read_ms_per_file"]
        wanted.append(targets.at_least(what, ahead, 1.0, "times"))
    return {
        "files": untar,
        "files_of_others": peer_files,
        "delay_ms": delay_ms,
        "absent": absent,
        "puts": puts,
        "gets": gets,
        "subjects": {OURS: ours, **figures},
        "targets": wanted,
    }


def _measure(subject: FarSubject, archive: Archive) -> dict[str, Any]:
    """Unpack, unmount, mount and read; return each step's milliseconds per file and requests."""
    traffic = subject.endpoint.traffic
    subject.make()
    with subject:
        before, start = traffic(), time.perf_counter()
        untar = ["tar", "--no-same-owner", "-xf", str(archive.path), "-C", str(subject.mountpoint)]
        subprocess.run(untar, check=True)
        unpacked_s = time.perf_counter() - start
        subject.wait_until_stored(archive.files)
        stored_s = time.perf_counter() - start
        stored = traffic()
    subject.forget()
    machine.drop_kernel_caches()
    ended = traffic()
    with subject:
        mounted, start = traffic(), time.perf_counter()
        _read(subject.mountpoint, archive)
        read_s = time.perf_counter() - start
        read = traffic()
    return {
        "files": archive.files,
        "unpacked_ms_per_file": unpacked_s / archive.files * 1e3,
        "stored_ms_per_file": stored_s / archive.files * 1e3,
        "read_ms_per_file": read_s / archive.files * 1e3,
        "unpacked": stored - before,
        "unmounted": ended - stored,
        "mounted": mounted - ended,
        "read": read - mounted,
    }


def _read(root: Path, archive: Archive) -> None:
    """Read all files in the order in which they were written."""
    for number in range(archive.files):
        data = (root / archive.name(number)).read_bytes()
        assert len(data) == fill.FILE_BYTES, f"file {number} has {len(data)} bytes"
        assert int(data[:8]) == number, f"file {number} has the content of another file"
