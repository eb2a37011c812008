"""stress-ng: filesystem jobs that verify their results, each run alone for a few seconds."""

import os
from collections.abc import Iterator
from typing import Final

from contrib.conformance import programs
from contrib.conformance.cases import Case, Outcome
from contrib.conformance.places import Place

SUITE: Final = "stress-ng"
WORKERS: Final = 2
SECONDS_GRACE: Final = 240.0  # Time that a stopped job may need to remove thousands of files.
# Exit codes of stress-ng(1).
NOT_APPLICABLE: Final = {3: "no resources", 4: "not implemented here"}
MEMORY_BYTES: Final = "32m"

# The stress-ng jobs, with all options except the number of workers.
# The job getdent is omitted, because it reads directories outside the tested filesystem.
JOBS: Final[dict[str, tuple[str, ...]]] = {
    "access": (),
    "aio": (),
    "chdir": ("--chdir-dirs", "256"),
    "chmod": (),
    "chown": (),
    "copy-file": ("--copy-file-bytes", "128m"),
    "dentry": ("--dentries", "512"),
    "dir": ("--dir-dirs", "512"),
    "dirdeep": ("--dirdeep-inodes", "2000"),
    "dirmany": (),
    "fallocate": ("--fallocate-bytes", "16m"),
    "fcntl": (),
    "file-ioctl": (),
    "filename": (),
    "flock": (),
    "fpunch": (),
    # Without fallocate(2), stress-ng reports an error if a time limit ends during a write(2).
    "fsize": ("--fsize-ops", "4"),
    "fstat": (),
    "handle": (),
    "hdd": ("--hdd-bytes", "64m", "--hdd-opts", "rd-rnd,wr-rnd,fsync"),
    "inotify": (),
    "iomix": ("--iomix-bytes", "32m"),
    "lease": (),
    "link": (),
    "locka": (),
    "lockf": (),
    "lockofd": (),
    "mknod": (),
    "mmap": ("--mmap-bytes", MEMORY_BYTES, "--mmap-file"),
    "msync": ("--msync-bytes", "16m"),
    "open": ("--open-max", "1000"),
    "readahead": ("--readahead-bytes", "64m"),
    "rename": (),
    "revio": ("--revio-bytes", "32m"),
    "seek": ("--seek-size", "64m"),
    "sendfile": ("--sendfile-size", "16m"),
    "splice": (),
    "symlink": (),
    "sync-file": ("--sync-file-bytes", "32m"),
    "touch": (),
    "utime": (),
    "xattr": (),
}


def run(place: Place, only: str | None, *, seconds: int) -> Iterator[Case]:
    """Run every job for a number of seconds."""
    program = programs.find(SUITE)
    for name, options in JOBS.items():
        if only is None or only in name:
            yield _run(place, program, name, options, seconds)


def _run(place: Place, program: str, name: str, options: tuple[str, ...], seconds: int) -> Case:
    command = [
        program, f"--{name}", str(WORKERS), *options, "--verify", "--timeout", str(seconds),
        "--temp-path", str(place.directory), "--oomable",
    ]  # fmt: skip
    finished = programs.run(
        command,
        directory=place.scratch,
        seconds_max=seconds + SECONDS_GRACE,
        environment=os.environ,
    )
    why = [line for line in finished.output.splitlines() if "fail:" in line or "error:" in line]
    detail = "; ".join(why[:4]) or programs.tail(finished.output, 4)
    if finished.status in NOT_APPLICABLE:
        reason = f"{NOT_APPLICABLE[finished.status]}: {detail}"
        return Case(SUITE, name, Outcome.SKIPPED, reason, finished.seconds)
    if finished.status == 0 and not why:
        return Case(SUITE, name, Outcome.PASSED, seconds=finished.seconds)
    return Case(
        SUITE, name, Outcome.FAILED, f"status {finished.status}: {detail}", finished.seconds
    )
