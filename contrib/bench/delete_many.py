"""Removing very many empty files in every available way, always from the same filesystem.

The files are written as rows, 1,000 to a directory, once for each number of them; every way starts
from a copy of that state and bucket, mounted anew, with the kernel's caches dropped. A removal ends
when statfs(2) counts no inode of the tree any more; for ``s3fs-meta rm`` the command itself, which
ends long before, stands beside it. Peak memory is the daemon's. Programs that go one by one need
minutes for a million files: their largest number is an option of its own. On the do-nothing filesystem, the
disk and JuiceFS fewer files are made through the kernel first, and removed by the same programs.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from contrib.bench import fill, machine, published, space
from contrib.bench.peers import JuiceSubject, juicefs
from contrib.bench.subjects import (
    PROJECT,
    NullSubject,
    PlainDirectory,
    S3fsSubject,
    Subject,
    environment,
    program,
)

PER_DIRECTORY: Final = 1000
NAME_BYTES: Final = 16
PEER_FILES: Final = 100_000
JUICE_FILES: Final = 10_000  # at the pace of its creates
OURS: Final = "s3fs-meta rm"

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
    """Measure all ways at their sizes and return the figures."""
    (scratch / "empty").mkdir()
    ways, absent = _ways()
    ours: dict[str, dict[str, Any]] = {}
    per_file = {}
    for files in (10**power for power in range(delete_power_min, delete_power + 1)):
        master = _master(scratch / f"ours-{files}", files)
        per_file[f"{files:,}"] = space.bytes_per_file(master.database(), files)
        here = {OURS: _at_once, **(ways if files <= 10**one_by_one_power else {})}
        for name, figures in _ours(master, here, files, scratch / "empty"):
            ours[f"{name}, {files:,}"] = figures
        shutil.rmtree(_aside(master))
    peers, absent_peers = _peers(scratch, ways, peer_files)
    return {
        "absent": [*absent, *absent_peers],
        "metadata_bytes_per_file": per_file,
        "s3fs-meta": ours,
        "others": peers,
        "published, and here per second": _published(ours, peers),
    }


def _ways() -> tuple[dict[str, Command], list[str]]:
    """Return the ways whose program is installed, and the others."""
    here = {name: way for name, way in WAYS.items() if shutil.which(name.split()[0])}
    return here, [name for name in WAYS if name not in here]


# --- ours --------------------------------------------------------------------------------------


def _master(root: Path, files: int) -> S3fsSubject:
    """Fill a filesystem and move its files below one directory."""
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
    """Yield each way and its times, on a fresh copy."""
    for name, way in ways.items():
        shutil.rmtree(subject.root)
        shutil.copytree(_aside(subject), subject.root, symlinks=True)
        with subject:
            yield name, _removed(subject, way(subject, empty), files)
    shutil.rmtree(subject.root)


def _at_once(subject: Subject, _: Path) -> list[str]:
    assert isinstance(subject, S3fsSubject), "the command is ours"
    tree = f"{subject.mountpoint}/tree"
    return [*program(), "rm", tree, "--cachedir", str(subject.state)]


def _removed(subject: Subject, command: Sequence[str], files: int) -> dict[str, Any]:
    """Remove; return the seconds until the command's end and until nothing is left, and the memory."""
    machine.drop_kernel_caches()
    if subject.pid:
        machine.settle(subject.pid)
    root = subject.mountpoint
    wanted = machine.inodes(root) - files if isinstance(subject, S3fsSubject) else None
    before_s = machine.cpu_s(subject.pid) if subject.pid else 0.0
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment(), cwd=PROJECT)
    command_s = time.perf_counter() - start
    if wanted is not None:
        machine.wait_gone(root, wanted)
    all_s = time.perf_counter() - start
    figures: dict[str, Any] = {
        "command_s": command_s,
        "until_all_is_gone_s": all_s,
        "files_per_s": files / all_s,
    }
    if subject.pid:
        figures["processor, us"] = (machine.cpu_s(subject.pid) - before_s) / files * 1e6
        figures["resident_peak"] = machine.memory_bytes(subject.pid)["resident_peak"]
    return figures


# --- the others --------------------------------------------------------------------------------


def _peers(
    scratch: Path, ways: Mapping[str, Command], files: int
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the times of the same programs on other filesystems, and absent ones."""
    subjects: dict[Subject, int] = {
        NullSubject("do-nothing", scratch / "null"): files,
        PlainDirectory("ext4", scratch / "disk"): files,
    }
    binary = juicefs()
    if binary is not None:
        juice = JuiceSubject("JuiceFS", scratch / "juice", binary)
        juice.make()
        subjects[juice] = min(files, JUICE_FILES)
    figures = {}
    for subject, count in subjects.items():
        with subject:
            for name, way in ways.items():
                _make(subject.mountpoint / "tree", count)
                taken = _removed(subject, way(subject, scratch / "empty"), count)
                figures[f"{subject.name}: {name}, {count:,}"] = taken
                shutil.rmtree(subject.mountpoint / "tree", ignore_errors=True)
    return figures, [] if binary else ["JuiceFS"]


def _make(tree: Path, files: int) -> None:
    tree.mkdir()
    for number in range(files):
        directory = tree / f"directory-{number // PER_DIRECTORY:06d}"
        if number % PER_DIRECTORY == 0:
            directory.mkdir()
        path = f"{directory}/{number:0{NAME_BYTES}d}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _published(
    ours: Mapping[str, Mapping[str, Any]], peers: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, float]]:
    """Return files removed in a second, published at 10⁹ and here at what was measured."""
    rows = {
        f"published: {name}": {"files_per_s": published.DELETE_MANY_FILES / seconds}
        for name, seconds in published.DELETE_MANY_S.items()
    }
    for name, figures in {**ours, **peers}.items():
        rows[f"here: {name}"] = {"files_per_s": figures["files_per_s"]}
    return rows
