"""The time to remove very many empty files with ``s3fs-meta rm``, rm, find and rsync.

The benchmark inserts the rows of the files into a database, with 1,000 files per directory. Each
program starts on a mounted copy of the state directory and bucket, with dropped kernel caches. A
removal is complete when statfs(2) no longer counts any inode of the tree. The command ``s3fs-meta
rm`` returns earlier, so the time of the command is a separate result. The peak memory is that of
the daemon. rm, find and rsync remove one file at a time and need minutes for a million files, so a
separate option limits their largest tree. They also remove smaller trees on the do-nothing
filesystem, on the disk, on JuiceFS and on S3QL.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from contrib.bench import fill, local_subjects, machine
from contrib.bench.names import CEILING, DISK, JUICEFS, S3QL
from contrib.bench.subjects import S3fsSubject, Subject, call_s

PER_DIRECTORY: Final = 1000
NAME_BYTES: Final = 16
PEER_FILES_MAX: Final = {JUICEFS: 10_000, S3QL: 10_000}  # More files take too long to create.
OWN_RM: Final = "s3fs-meta rm"

Command = Callable[[Subject, Path], list[str]]
WAYS: Final[Mapping[str, Command]] = {
    "rm -rf": lambda subject, _: ["rm", "-rf", f"{subject.mountpoint}/tree"],
    "find -delete": lambda subject, _: ["find", f"{subject.mountpoint}/tree", "-delete"],
    "rsync --delete": lambda subject, empty: [
        "rsync", "--archive", "--delete", f"{empty}/", f"{subject.mountpoint}/tree/",
    ],
}  # fmt: skip


def run(
    scratch: Path,
    *,
    delete_power_min: int,
    delete_power: int,
    one_by_one_power: int,
    peer_files: int,
) -> dict[str, object]:
    """Measure all programs on trees of several sizes; return the results."""
    (scratch / "empty").mkdir()
    ways, absent = _ways()
    ours: dict[str, dict[str, Any]] = {}
    per_file = {}
    for files in (10**power for power in range(delete_power_min, delete_power + 1)):
        master = _master(scratch / f"ours-{files}", files)
        per_file[f"{files:,}"] = fill.bytes_per_file(master, files)
        here = {OWN_RM: _at_once, **(ways if files <= 10**one_by_one_power else {})}
        for name, figures in _ours(master, here, files, scratch / "empty"):
            ours[f"{name}, {files:,}"] = figures
        shutil.rmtree(_aside(master))
    peers, absent_peers = _peers(scratch, ways, peer_files)
    return {
        "absent": [*absent, *absent_peers],
        "metadata_bytes_per_file": per_file,
        "s3fs-meta": ours,
        "others": peers,
    }


def _ways() -> tuple[dict[str, Command], list[str]]:
    """Return the commands of installed programs, and the names of missing programs."""
    here = {name: way for name, way in WAYS.items() if shutil.which(name.split()[0])}
    return here, [name for name in WAYS if name not in here]


# --- deletes in s3fs-meta ----------------------------------------------------------------------


def _master(root: Path, files: int) -> S3fsSubject:
    """Make a filesystem with all files below the directory ``tree``, and a copy of it."""
    subject = S3fsSubject("s3fs-meta", root, options={"sync_interval": "3600"})
    fill.make_filled(subject, files=files, per_directory=PER_DIRECTORY, name_bytes=NAME_BYTES)
    with subject:
        tree = subject.mountpoint / "tree"
        tree.mkdir()
        for path in sorted(subject.mountpoint.glob("directory-*")):
            path.rename(tree / path.name)
    shutil.copytree(root, _aside(subject), symlinks=True)
    return subject


def _aside(subject: S3fsSubject) -> Path:
    return subject.root.with_name(f"{subject.root.name}-master")


def _ours(
    subject: S3fsSubject, ways: Mapping[str, Command], files: int, empty: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and times of each command.

    Each command runs on a new copy of the filesystem.
    """
    for name, way in ways.items():
        shutil.rmtree(subject.root)
        shutil.copytree(_aside(subject), subject.root, symlinks=True)
        with subject:
            yield name, _removed(subject, way(subject, empty), files)
    shutil.rmtree(subject.root)


def _at_once(subject: Subject, _: Path) -> list[str]:
    assert isinstance(subject, S3fsSubject), "only s3fs-meta has this command"
    return subject.words("rm", paths=[subject.mountpoint / "tree"])


def _removed(subject: Subject, command: Sequence[str], files: int) -> dict[str, Any]:
    """Remove the tree; return the duration of command and removal, and the peak memory."""
    machine.drop_kernel_caches()
    subject.rest()
    root = subject.mountpoint
    wanted = machine.inodes(root) - files if isinstance(subject, S3fsSubject) else None
    before_s, start = subject.cpu_s(), time.perf_counter()
    command_s = call_s(*command)
    if wanted is not None:
        machine.wait_gone(root, wanted)
    all_s = time.perf_counter() - start
    figures: dict[str, Any] = {
        "command_s": command_s,
        "until_all_is_gone_s": all_s,
        "files_per_s": files / all_s,
    }
    if subject.pid:
        figures["processor, us"] = (subject.cpu_s() - before_s) / files * 1e6
        figures["resident_peak"] = subject.memory()["resident_peak"]
    return figures


# --- deletes in other filesystems --------------------------------------------------------------


def _peers(
    scratch: Path, ways: Mapping[str, Command], files: int
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the programs' times on other filesystems, and the names of missing filesystems."""
    subjects, absent = local_subjects.available(
        scratch, (CEILING, DISK, JUICEFS, S3QL), plain_files=False
    )
    figures = {}
    for subject in subjects:
        count = min(files, PEER_FILES_MAX.get(subject.name, files))
        with subject:
            for name, way in ways.items():
                _make(subject.mountpoint / "tree", count)
                taken = _removed(subject, way(subject, scratch / "empty"), count)
                figures[f"{subject.name}: {name}, {count:,}"] = taken
                shutil.rmtree(subject.mountpoint / "tree", ignore_errors=True)
    return figures, absent


def _make(tree: Path, files: int) -> None:
    tree.mkdir()
    for number in range(files):
        directory = tree / f"directory-{number // PER_DIRECTORY:06d}"
        if number % PER_DIRECTORY == 0:
            directory.mkdir()
        path = f"{directory}/{number:0{NAME_BYTES}d}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
