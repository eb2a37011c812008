"""Tests of clones of past files and directories on a real mount."""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from s3fs_meta.console.exits import ExitStatus
from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX, wait_until
from tests.programs import Program, QuickProgram

pytestmark = pytest.mark.mount


def _flushed(program: Program, mnt: Path) -> int:
    """Upload all changes and return the txg."""
    return int(json.loads(program.ok("flush", "--json", mnt))["txg"])


@contextmanager
def _without_packs(bucket: Path) -> Iterator[None]:
    """Hide the packs of a bucket until the context ends, so that no content can be downloaded."""
    packs = bucket / "pack"
    hidden = packs.with_name("hidden")
    packs.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(packs)


def _make_folder(folder: Path, content: bytes) -> None:
    """Create a directory that has every property that a clone must keep."""
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "big").write_bytes(content)
    (folder / "linked").hardlink_to(folder / "deep" / "big")
    (folder / "link").symlink_to("deep/big")
    os.setxattr(folder, "user.colour", b"blue")
    os.chmod(folder / "deep", 0o2750)


def test_overwritten_file_and_removed_directory_can_be_cloned_from_a_past_txg(
    program: Program, mounted: Place, tmp_path: Path
) -> None:
    """A clone of the past downloads nothing, and another host sees it after the next upload."""
    mnt = mounted.mountpoint
    content = os.urandom(3 << 20)
    _make_folder(mnt / "folder", content)
    (mnt / "report").write_text("the good report")
    txg = _flushed(program, mnt)
    (mnt / "report").write_text("overwritten")
    subprocess.run(["rm", "-r", mnt / "folder"], check=True)
    _flushed(program, mnt)

    with _without_packs(mounted.bucket):
        at = f"--at=txg={txg}"
        done = json.loads(program.ok("clone", "--json", at, mnt / "folder", mnt / "folder"))
        program.ok("clone", at, mnt / "report", mnt / "report then")
        program.ok("clone", mnt / ".snapshots" / f"txg={txg}" / "report", mnt / "once more")
        program.ok("flush", mnt)
    assert done == {"path": str(mnt / "folder"), "entries": 5, "txg": txg}
    assert (mnt / "folder" / "link").read_bytes() == content
    assert (mnt / "folder" / "linked").samefile(mnt / "folder" / "deep" / "big")
    assert os.getxattr(mnt / "folder", "user.colour") == b"blue"
    assert (mnt / "folder" / "deep").stat().st_mode == 0o42750
    assert (mnt / "report then").read_text() == (mnt / "once more").read_text()
    assert (mnt / "report then").read_text() == "the good report"
    assert (mnt / "report").read_text() == "overwritten"
    program.ok("umount", mnt)
    program.ok("fsck", "-n", "--deep", mounted.url)

    elsewhere = Program(tmp_path / "elsewhere")
    (tmp_path / "look").mkdir()
    elsewhere.ok("mount", "-o", "ro", mounted.url, tmp_path / "look")
    try:
        assert (tmp_path / "look" / "folder" / "deep" / "big").read_bytes() == content
        assert (tmp_path / "look" / "report then").read_text() == "the good report"
    finally:
        elsewhere.ok("umount", tmp_path / "look")


def test_clone_from_a_past_txg_with_an_invalid_source_or_target_is_refused(
    program: Program, mounted: Place
) -> None:
    """For an impossible clone, the command prints the reason and does not create the target."""
    mnt = mounted.mountpoint
    (mnt / "f").write_text("content")
    txg = _flushed(program, mnt)
    (mnt / "later").write_text("content")
    _flushed(program, mnt)
    past = mnt / ".snapshots" / f"txg={txg}"
    for at, source, target, why in (
        (f"--at=txg={txg}", mnt / "later", mnt / "copy", "did not exist at that point in time"),
        ("--at=txg=999", mnt / "f", mnt / "copy", "not retained"),
        ("--at=10x", mnt / "f", mnt / "copy", "is not a point in time"),
        ("--at=unknown", mnt / "f", mnt / "copy", "no kept point of this name"),
        (f"--at=txg={txg}", mnt / "f", mnt / "later", "exists"),
        (f"--at=txg={txg}", past / "f", mnt / "copy", "leave out --at"),
        (f"--at=txg={txg}", mnt / "f", past / "copy", "read-only"),
    ):
        done = program.run("clone", at, source, target)
        assert done.returncode != ExitStatus.DONE
        assert why in done.stderr
        is_absent = why in {"not retained", "no kept point of this name"}
        assert (done.returncode == ExitStatus.SETTINGS) == is_absent
    done = program.run("clone", past.parent, mnt / "copy")
    assert done.returncode == ExitStatus.USAGE
    assert "all points in time" in done.stderr
    assert sorted(os.listdir(mnt)) == ["f", "later"]


class InStep:
    """A worker that changes two directories; each step changes the first before the second."""

    def __init__(self, first: Path, second: Path) -> None:
        self.places = (first, second)
        self.count = 0

    def step(self) -> None:
        """Create a numbered name in each directory, and then write the number into each file."""
        self.count += 1
        for place in self.places:
            (place / f"{self.count:06}").touch()
        for place in self.places:
            with (place / "number").open("r+b") as file:
                file.write(b"%06d" % self.count)


class Synced:
    """A worker that writes numbers into two open files and syncs the first before the second."""

    def __init__(self, first: Path, second: Path) -> None:
        self.places = (first, second)
        self.count = 0
        self._files = [place.open("r+b", buffering=0) for place in self.places]

    def step(self) -> None:
        """Write the next number into the first file, and then into the second."""
        self.count += 1
        for file in self._files:
            os.pwrite(file.fileno(), b"%06d" % self.count, 0)
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the two files."""
        for file in self._files:
            file.close()


@contextmanager
def running(worker: InStep | Synced) -> Iterator[None]:
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
    """Create a tree of 30 directories; the worker uses the first and the last directory."""
    for number in range(30):
        (tree / f"d{number:02}").mkdir(parents=True)
        for each in range(20):
            (tree / f"d{number:02}" / f"f{each}").touch()
    first, second = tree / "d00", tree / "d29"
    for place in (first, second):
        (place / "number").write_bytes(b"%06d" % 0)
    return InStep(first, second)


def _last(place: Path) -> tuple[int, int]:
    """Return the highest number among a directory's names, and the number in its file "number"."""
    names = [int(name) for name in os.listdir(place) if name.isdigit()]
    return max(names, default=0), int((place / "number").read_bytes())


@pytest.mark.parametrize("option", ["--at=now", "--freeze"])
def test_clone_of_a_tree_is_consistent_while_the_tree_changes(
    program: QuickProgram, mounted: Place, option: str
) -> None:
    """The clone contains all changes up to one step of the worker, and no later change.

    The option ``--freeze`` of earlier versions has the same effect.
    """
    tree = mounted.mountpoint / "tree"
    worker = _make_places(tree)
    steps: list[int] = []
    with running(worker):
        for number in range(2):
            before = worker.count - 1
            program.ok("clone", option, tree, mounted.mountpoint / f"copy{number}")
            copy = mounted.mountpoint / f"copy{number}"
            first, second = (_last(copy / place.name) for place in worker.places)
            steps = [first[0], second[0], first[1], second[1]]
            assert steps == sorted(steps, reverse=True)
            assert steps[0] - steps[-1] <= 1
            assert steps[-1] >= before
        wait_until(lambda: worker.count > steps[0], "the worker made no step after the clones")
    program.ok("umount", mounted.mountpoint)
    program.ok("fsck", "-n", mounted.url)


def test_clone_that_contains_a_synced_write_contains_all_earlier_synced_writes(
    program: QuickProgram, mounted: Place
) -> None:
    tree = mounted.mountpoint / "tree"
    tree.mkdir()
    for name in ("first", "second"):
        (tree / name).write_bytes(b"%06d" % 0)
    worker = Synced(tree / "first", tree / "second")
    with contextlib.closing(worker), running(worker):
        for number in range(2):
            before = worker.count - 1
            copy = mounted.mountpoint / f"copy{number}"
            program.ok("clone", "--at=now", tree, copy)
            first, second = (int((copy / place.name).read_bytes()) for place in worker.places)
            assert before <= second <= first <= second + 1
    program.ok("umount", mounted.mountpoint)


def test_clone_with_option_freeze_prints_a_deprecation_warning(
    program: Program, mounted: Place
) -> None:
    (mounted.mountpoint / "f").touch()
    done = program.run("clone", "--freeze", mounted.mountpoint / "f", mounted.mountpoint / "g")
    assert done.returncode == ExitStatus.DONE
    assert "means --at=now" in done.stderr
