"""Copies of a system tree: with hard links, removed again, and with clone and rm.

The tree is a Debian base system by ``debootstrap``, kept below ``build/`` once it is made, or what
``--tree`` names; where there is neither, ``/usr/share`` of this machine. It is copied to each
filesystem first. Then, in turns: ``cp -al`` and ``rm -rf`` of the copy; and on filesystems that
have their own commands for it, those, with the start of their program included. A removal of
``s3fs-meta rm`` ends when the command does; *until nothing is left* is when statfs(2) counts no
inode of the copy any more. Kernel caches are warm, as after making the tree.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from contrib.bench import machine, published, samples
from contrib.bench.peers import JuiceSubject, juicefs
from contrib.bench.subjects import (
    PROJECT,
    PlainDirectory,
    S3fsSubject,
    Subject,
    environment,
    program,
)

KEPT: Final = PROJECT / "build" / "debian-base"
SUITE: Final = "stable"
MIRROR: Final = "http://deb.debian.org/debian"
DEBOOTSTRAP_S_MAX: Final = 600
INSTEAD: Final = Path("/usr/share")
OURS: Final = "s3fs-meta"
DISK: Final = "ext4"

Work = Callable[[Path], None]


def run(scratch: Path, *, tree: Path | None, rounds: int) -> dict[str, object]:
    """Measure every available filesystem and return the figures."""
    source, origin = the_tree(tree)
    with ExitStack() as stack:
        subjects, absent = _subjects(scratch)
        for subject in subjects:
            stack.enter_context(subject)
            _call("cp", "-a", source, subject.mountpoint / "tree")
        taken = _measured(subjects, rounds)
    entries = sum(1 + len(files) for _, _, files in os.walk(source))
    cases = {name: {step: samples.summary(each) for step, each in steps.items()}
             for name, steps in taken.items()}  # fmt: skip
    return {
        "tree": origin,
        "entries": entries,
        "rounds": rounds,
        "absent": absent,
        "seconds": cases,
        "entries_per_second": {
            name: {step: entries / value["median"] for step, value in steps.items()}
            for name, steps in cases.items()
        },
        "published, s": _published(cases),
    }


def the_tree(given: Path | None) -> tuple[Path, str]:
    """Return a real system tree, and its description."""
    if given is not None:
        return given, "what --tree names"
    if KEPT.exists():
        return KEPT, f"Debian {SUITE}, debootstrap --variant=minbase"
    if shutil.which("debootstrap") is None:
        return INSTEAD, f"{INSTEAD} of this machine: debootstrap is absent"
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT.parent) as folder:
        words = ["debootstrap", "--variant=minbase", SUITE, f"{folder}/tree", MIRROR]
        try:
            subprocess.run(words, check=True, capture_output=True, timeout=DEBOOTSTRAP_S_MAX)
        except subprocess.SubprocessError as exc:
            return INSTEAD, f"{INSTEAD} of this machine: debootstrap failed ({exc})"
        Path(folder, "tree").rename(KEPT)
    return the_tree(None)


def _subjects(scratch: Path) -> tuple[list[Subject], list[str]]:
    ours = S3fsSubject(OURS, scratch / "ours")
    ours.make()
    subjects: list[Subject] = [ours, PlainDirectory(DISK, scratch / "disk")]
    binary = juicefs()
    if binary is None:
        return subjects, ["JuiceFS"]
    juice = JuiceSubject("JuiceFS", scratch / "juice", binary)
    juice.make()
    return [*subjects, juice], []


def _measured(subjects: Sequence[Subject], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each step on each filesystem."""
    taken: dict[str, dict[str, list[float]]] = {}
    for number in range(rounds):
        first = number % len(subjects)
        for subject in [*subjects[first:], *subjects[:first]]:
            _settle(subject)
            _note(taken, f"{subject.name}: cp -al, rm -rf", _linked(subject))
            _settle(subject)
            for name, steps in _at_once(subject):
                _note(taken, name, steps)
    return taken


def _note(taken: dict[str, dict[str, list[float]]], name: str, steps: Mapping[str, float]) -> None:
    for step, seconds in steps.items():
        taken.setdefault(name, {}).setdefault(step, []).append(seconds)


def _settle(subject: Subject) -> None:
    if subject.pid:
        machine.settle(subject.pid)


def _linked(subject: Subject) -> dict[str, float]:
    root = subject.mountpoint
    copied_s = _call("cp", "-al", root / "tree", root / "copy")
    removed_s = _call("rm", "-rf", root / "copy")
    return {"copy": copied_s, "remove": removed_s}


def _at_once(subject: Subject) -> list[tuple[str, dict[str, float]]]:
    """Return the times of the filesystem's own commands, if it has any."""
    root = subject.mountpoint
    tree, copy = root / "tree", root / "copy"
    if isinstance(subject, S3fsSubject):
        before = machine.inodes(root)
        copied_s = _call(*program(), "clone", tree, copy)
        start = time.perf_counter()
        removed_s = _call(*program(), "rm", copy)
        machine.wait_gone(root, before)
        gone_s = time.perf_counter() - start
        steps = {"copy": copied_s, "remove": removed_s, "until nothing is left": gone_s}
        return [(f"{subject.name}: clone, rm", steps)]
    if isinstance(subject, JuiceSubject):
        binary = juicefs()
        assert binary is not None, "it is mounted"
        copied_s = _call(binary, "clone", tree, copy)
        removed_s = _call(binary, "rmr", "--skip-trash", copy)
        return [(f"{subject.name}: clone, rmr", {"copy": copied_s, "remove": removed_s})]
    return []


def _call(*words: str | Path) -> float:
    """Run a program; return its duration."""
    start = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True, env=environment(), cwd=PROJECT)
    return time.perf_counter() - start


def _published(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return the published seconds and ours in rows: the trees differ."""
    rows: dict[str, dict[str, float | None]] = {
        f"published: {name}": {"copy": value, "remove": published.COPY_REMOVE_S[name]}
        for name, value in published.COPY_S.items()
    }
    for name, steps in cases.items():
        rows[f"here: {name}"] = {step: steps[step]["median"] for step in ("copy", "remove")}
    for row in rows.values():
        row["remove, of copy"] = (row["remove"] or 0) / (row["copy"] or 1)
    return rows
