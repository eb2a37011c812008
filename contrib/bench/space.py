"""Bytes of metadata per empty file, and the daemon's memory, at two sizes of filesystem."""

import subprocess
from pathlib import Path
from typing import Final

from contrib.bench import fill, machine, targets
from contrib.bench.subjects import S3fsSubject

NAME_BYTES: Final = 16
BYTES_PER_FILE_MAX: Final = 110
MEMORY_GROWTH_MAX: Final = 0.1
LAYOUTS: Final = {"one directory": 1 << 62, "1,000 per directory": 1000}


def run(scratch: Path, *, many: int) -> dict[str, object]:
    """Fill, measure, mount, walk, measure; return the figures."""
    small, large = many // 10, many
    layouts = {}
    memory = {}
    for name, per_directory in LAYOUTS.items():
        for files in (small, large):
            subject = S3fsSubject("s3fs-meta", scratch / f"{per_directory}-{files}")
            fill.make_filled(
                subject, files=files, per_directory=min(per_directory, files), name_bytes=NAME_BYTES
            )
            layouts[f"{files} files, {name}"] = bytes_per_file(subject.database(), files)
            memory[f"{files} files, {name}"] = daemon_memory(subject)
    growth = {
        name: memory[f"{large} files, {name}"]["after the walk"]["resident"]
        / memory[f"{small} files, {name}"]["after the walk"]["resident"]
        - 1
        for name in LAYOUTS
    }
    return {
        "bytes_per_file": layouts,
        "bytes_per_file_max": BYTES_PER_FILE_MAX,
        "memory": memory,
        "memory_growth": growth,
        "targets": [
            targets.at_most(
                "metadata of an empty file",
                max(each for name, each in layouts.items() if name.startswith(f"{large} ")),
                BYTES_PER_FILE_MAX,
                "bytes",
            ),
            targets.at_most(
                "growth of the daemon over ten times the files",
                max(growth.values()),
                MEMORY_GROWTH_MAX,
            ),
        ],
    }


def bytes_per_file(database: Path, files: int) -> float:
    """Return the size of everything that SQLite keeps, divided by the files."""
    belonging = database.parent.glob(database.name + "*")
    return sum(path.stat().st_size for path in belonging) / files


def daemon_memory(subject: S3fsSubject) -> dict[str, dict[str, int]]:
    """Return the daemon's memory after mounting, after find, and after the kernel's cache was dropped."""
    with subject:
        pid = subject.pid
        assert pid is not None, "the subject is mounted"
        machine.settle(pid)
        mounted = machine.memory_bytes(pid)
        subprocess.run(
            ["find", str(subject.mountpoint), "-size", "+1000000"],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        machine.settle(pid)
        walked = machine.memory_bytes(pid)
        machine.drop_kernel_caches()
        machine.settle(pid)
        forgotten = machine.memory_bytes(pid)
    return {"mounted": mounted, "after the walk": walked, "after forgetting": forgotten}
