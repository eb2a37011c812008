"""Consistent copies of a subtree on a real mount."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount import targets
from tests.cli.conftest import Place
from tests.programs import PROCESS_S_MAX, QuickProgram

pytestmark = pytest.mark.mount

# A client that sends the first request of a frozen copy and ignores all further events.
_CLIENT = """
import sys, trio
from pathlib import Path
from s3fs_meta.control import client
import json
def report(event):
    print("held" if "held" in event else "", flush=True)
trio.run(client.call, Path(sys.argv[1]), "clone_frozen", json.loads(sys.argv[2]), report)
"""


class InStep:
    """A worker that changes two directories, always the first one before the second one."""

    def __init__(self, first: Path, second: Path) -> None:
        self.places = (first, second)
        self.count = 0
        self.longest_s = 0.0

    def step(self) -> None:
        """Create a numbered name in both directories, then write the number into a file of each."""
        self.count += 1
        began_s = time.monotonic()
        for place in self.places:
            (place / f"{self.count:06}").touch()
        for place in self.places:
            with (place / "number").open("r+b") as file:
                file.write(b"%06d" % self.count)
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)


@contextmanager
def running(worker: InStep) -> Iterator[None]:
    """Run the worker in a thread."""
    ending = threading.Event()

    def work() -> None:
        while not ending.is_set():
            worker.step()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join(PROCESS_S_MAX)
    assert not thread.is_alive()


def _make_places(tree: Path) -> InStep:
    """Make a tree of 30 directories; the worker uses the first and the last of them."""
    for number in range(30):
        (tree / f"d{number:02}").mkdir(parents=True)
        for each in range(100):
            (tree / f"d{number:02}" / f"f{each}").touch()
    first, second = tree / "d00", tree / "d29"
    for place in (first, second):
        (place / "number").write_bytes(b"%06d" % 0)
    return InStep(first, second)


def _last(place: Path) -> tuple[int, int]:
    """Return a directory's last number twice: by its names, and by the content of its file."""
    names = [int(name) for name in os.listdir(place) if name.isdigit()]
    return max(names, default=0), int((place / "number").read_bytes())


def test_frozen_copy_is_consistent(program: QuickProgram, mounted: Place) -> None:
    """A frozen copy has all changes up to one step of the worker, and none after it."""
    tree = mounted.mountpoint / "tree"
    worker = _make_places(tree)
    steps: list[int] = []
    with running(worker):
        for number in range(3):
            time.sleep(0.1)  # the worker changes the tree
            before = worker.count - 1
            program.ok("clone", "--freeze", tree, mounted.mountpoint / f"copy{number}")
            assert worker.longest_s < PROCESS_S_MAX
            copy = mounted.mountpoint / f"copy{number}"
            first, second = (_last(copy / place.name) for place in worker.places)
            steps = [first[0], second[0], first[1], second[1]]
            assert steps == sorted(steps, reverse=True)
            assert steps[0] - steps[-1] <= 1
            assert steps[-1] >= before
    assert worker.count > steps[0]
    program.ok("umount", mounted.mountpoint)
    program.ok("fsck", "-n", mounted.url)


def _held(mounted: Place, program: QuickProgram, tree: Path) -> "subprocess.Popen[str]":
    """Start a client that freezes a tree; return when the tree's writers are blocked."""
    state = targets.of_mountpoint(mounted.mountpoint, program.cachedir).state
    above = os.stat(tree.parent).st_ino
    source = {"parent": above, "name": tree.name, "ino": tree.stat().st_ino}
    target = {"parent": above, "name": "copy", "ino": 0}
    wish = json.dumps({"source": source, "target": target, "limit_s": PROCESS_S_MAX})
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT, str(state), wish],
        env=program.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "held\n"
    return client


def test_killed_clone_command_unfreezes_its_writers(program: QuickProgram, mounted: Place) -> None:
    """During a freeze reads and writers of other files continue.

    After a kill of the client the blocked writer continues, too, and no copy exists.
    """
    mnt, tree = mounted.mountpoint, mounted.mountpoint / "tree"
    tree.mkdir()
    (tree / "file").write_text("content")
    (tree / "tool").write_text("#!/bin/sh\necho done\n")
    (tree / "tool").chmod(0o755)
    client = _held(mounted, program, tree)
    try:
        writer = threading.Thread(target=(tree / "file").write_text, args=("changed",))
        writer.start()
        (mnt / "beside").write_text("not held")
        # the truncation by write_text is not blocked
        assert (tree / "file").read_text() in {"content", ""}
        assert subprocess.check_output([tree / "tool"]) == b"done\n"
        deadline_s = time.monotonic() + PROCESS_S_MAX
        while program.status(mnt)["trees"]["held_back"] == 0:
            assert time.monotonic() < deadline_s, "no writer waits"
        assert writer.is_alive()
    finally:
        client.kill()
        client.communicate()
    writer.join(PROCESS_S_MAX)
    assert not writer.is_alive()
    assert (tree / "file").read_text() == "changed"
    assert sorted(os.listdir(mnt)) == ["beside", "tree"]


def test_file_opened_during_a_freeze_is_blocked_for_writing(
    program: QuickProgram, mounted: Place
) -> None:
    tree = mounted.mountpoint / "tree"
    tree.mkdir()
    (tree / "file").write_text("content")
    client = _held(mounted, program, tree)
    written = threading.Event()

    def write() -> None:
        # os.open(), because open() requests attributes first, and that could block.
        fd = os.open(tree / "file", os.O_WRONLY)
        os.write(fd, b"changed")
        written.set()
        os.close(fd)

    try:
        writer = threading.Thread(target=write)
        writer.start()
        deadline_s = time.monotonic() + PROCESS_S_MAX
        while program.status(mounted.mountpoint)["trees"]["held_back"] == 0:
            assert time.monotonic() < deadline_s, "no writer waits"
        assert not written.is_set()
    finally:
        client.kill()
        client.communicate()
    writer.join(PROCESS_S_MAX)
    assert (tree / "file").read_text() == "changed"


def test_writers_are_blocked_for_a_limited_time(program: QuickProgram, mounted: Place) -> None:
    """After --freeze-max the clone command fails, no copy exists, and writers continue."""
    tree = mounted.mountpoint / "tree"
    _make_places(tree)
    done = program.run(
        "clone", "--freeze", "--freeze-max", "0.001", tree, mounted.mountpoint / "copy"
    )
    assert done.returncode == ExitStatus.REQUEST
    assert "writers were blocked for 0.001 s" in done.stderr
    (tree / "new").touch()
    assert os.listdir(mounted.mountpoint) == ["tree"]
