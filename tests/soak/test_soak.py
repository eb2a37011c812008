"""Tests of the soak test: a short run, and the errors that its comparison must detect."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from contrib.soak.__main__ import command_of_repetition
from contrib.soak.commands import FindingError
from contrib.soak.hand import do, see
from contrib.soak.history import History, trimmed
from contrib.soak.states import BLOCK_BYTES, NAMES_MAX, Chooser, Observed, Operation

ROOT: Final = Path(__file__).parents[2]
_OPERATIONS: Final = (
    Operation("mkdir", "d"),
    Operation("put", "d/file", data=b"old content"),
    Operation("put", "other", data=bytes(range(256)) * 300),
    Operation("write", "d/file", offset=4, data=b"CONTENT AND MORE"),
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return an empty directory."""
    root = tmp_path / "tree"
    root.mkdir()
    return root


def _done(tree: Path) -> History:
    """Execute some operations in a directory; return the history of the operations."""
    history = History()
    for operation in _OPERATIONS:
        history.begin(operation)
        do(str(tree), operation)
        history.ended(operation)
    return history


def test_printed_command_contains_seed_and_duration_and_events_of_a_soak_run() -> None:
    every = command_of_repetition(17, 20.0, "")
    some = command_of_repetition(17, 20.0, "kill,outage")

    assert every == "make soak SOAK_SEED=17 SOAK_MINUTES=20"
    assert some == f"{every} ARGS=--only=kill,outage"


def test_soak_test_model_agrees_with_a_real_filesystem(tree: Path) -> None:
    """After 400 random operations, the model equals a local directory."""
    history, chooser = History(), Chooser(random.Random(5))
    for _ in range(400):
        operation = chooser.choose(history.now)
        history.begin(operation)
        do(str(tree), operation)
        history.ended(operation)

    history.require_now(see(str(tree)), "the directory")


def test_soak_test_removes_a_symlink_if_the_tree_has_no_other_entries(tree: Path) -> None:
    """In a full tree that contains only symlinks, the next operation removes a symlink."""
    history, chooser = History(), Chooser(random.Random(6))
    links = [Operation("symlink", f"d/{number}", "target") for number in range(NAMES_MAX)]
    for operation in [Operation("mkdir", "d"), *links]:
        history.begin(operation)
        do(str(tree), operation)
        history.ended(operation)

    operation = chooser.choose(history.now)

    assert (operation.act, operation.path.startswith("d/")) == ("unlink", True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda tree: (tree / "other").unlink(),
        lambda tree: (tree / "new").touch(),
        lambda tree: (tree / "other").chmod(0o600),
        lambda tree: (tree / "other").write_bytes(bytes(76_800)),
        lambda tree: (tree / "link").hardlink_to(tree / "other"),
        lambda tree: os.truncate(tree / "other", 76_799),
    ],
    ids=["missing", "new", "mode", "content", "link", "size"],
)
def test_soak_test_reports_a_difference_from_the_expected_tree(
    tree: Path, spoil: Callable[[Path], object]
) -> None:
    """The soak test reports a missing, a new or a changed entry."""
    history = _done(tree)
    spoil(tree)

    with pytest.raises(FindingError, match="none of the states"):
        history.require_now(see(str(tree)), "the directory")


def test_soak_test_accepts_a_partial_interrupted_write_after_a_crash(tree: Path) -> None:
    """Each byte of an interrupted write may have its old or its new value."""
    history = _done(tree)
    (tree / "d/file").write_bytes(b"old CONTent")

    number = history.require(see(str(tree)), "after a kill", 0, history.last)

    assert number == history.last - 1
    (tree / "d/file").write_bytes(b"old xONTent")
    with pytest.raises(FindingError):
        history.require(see(str(tree)), "after a kill", 0, history.last)


def test_soak_test_reports_the_loss_of_a_durable_operation(tree: Path) -> None:
    """After a kill, the soak test requires the effect of the last durable operation."""
    history = _done(tree)
    (tree / "d/file").write_bytes(b"old content")

    assert history.require(see(str(tree)), "after a kill", 0, history.last) == history.last - 1
    with pytest.raises(FindingError):
        history.require(see(str(tree)), "after a kill", history.last, history.last)


def test_soak_test_reports_changes_that_a_takeover_should_have_undone(tree: Path) -> None:
    """The soak test reports a follower that shows changes which a takeover has dropped."""
    history = _done(tree)
    undone = see(str(tree))
    (tree / "d/file").write_bytes(b"old content")
    history.adopt(history.last - 1, see(str(tree)))

    with pytest.raises(FindingError):
        history.require(undone, "a follower", 0, history.last)


def _with_failed_block(tree: Path) -> Observed:
    observed = see(str(tree))
    data = observed.data["other"]
    observed.data["other"] = bytes(BLOCK_BYTES) + data[BLOCK_BYTES:]
    observed.failed["other"] = [(0, BLOCK_BYTES)]
    return observed


def test_soak_test_reports_an_unreadable_block_of_an_undamaged_pack(tree: Path) -> None:
    """EIO is allowed only for blocks of a pack that the soak test has damaged."""
    history = _done(tree)
    observed = _with_failed_block(tree)

    with pytest.raises(FindingError, match="no damaged object contained"):
        history.require_now(observed, "the directory")
    history.tainted.add(trimmed(history.now.data("other")[:BLOCK_BYTES]))
    history.require_now(observed, "the directory")


# --- real runs of the soak test ------------------------------------------------------------------


def _command(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "contrib.soak", "--folder", str(folder), *words]


@pytest.mark.mount
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_short_soak_run_finds_no_error_and_leaves_no_process(tmp_path: Path, as_root: None) -> None:
    """A soak run of twelve seconds finds no error, and leaves no process or mount."""
    seed = random.SystemRandom().randrange(1 << 32)

    done = subprocess.run(
        _command(tmp_path, "--minutes", "0.2", "--seed", str(seed)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "nothing found" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mount
def test_interrupted_soak_run_leaves_no_process_or_mount_or_directory(
    tmp_path: Path, as_root: None
) -> None:
    """After Ctrl-C, no process, mount or directory of the soak run remains."""
    command = _command(tmp_path, "--only", "use", "--minutes", "5")
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        while "=== use" not in process.stdout.readline():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()  # The read ends when the last process of the run exits.

    assert process.returncode == 130, rest
    assert "interrupted" in rest
    assert list(tmp_path.iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
