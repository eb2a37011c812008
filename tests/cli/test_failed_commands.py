"""Tests of commands that fail early and must leave no directory behind."""

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Place
from tests.polling import PROCESS_S_MAX
from tests.programs import QuickProgram
from tests.sampled import sampled

pytestmark = pytest.mark.thorough

COMMANDS = [
    ("fsck", "-n"),
    ("fsck", "-y"),
    ("reclaim",),
    ("rollback", "--at", "txg=1", "--yes"),
    ("restore", "--at", "txg=1", "--to", "TARGET"),
    ("recover-state",),
    ("status",),
    ("destroy", "--by-name"),
    ("log",),
    ("mount", "--mkdir"),
    ("mount", "--mkdir", "-f"),
]


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """Return the URL of a store that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield f"http://127.0.0.1:{silent.getsockname()[1]}"


def completed(words: tuple[str, ...], url: str, folder: Path) -> list[str]:
    """Return a command line with the URL and the paths that the command needs."""
    found = [str(folder / "target") if word == "TARGET" else word for word in words]
    return [*found, url, *([str(folder / "mnt")] if words[0] == "mount" else [])]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("url", ["local://{}/mistyped", "locl://{}/store", "{}/store"])
def test_command_with_a_mistyped_url_creates_no_file_or_directory(
    quick: QuickProgram, tmp_path: Path, words: tuple[str, ...], url: str
) -> None:
    """A command with a mistyped URL creates no state directory, mountpoint, target or store."""
    done = quick.run(*completed(words, url.format(tmp_path), tmp_path))

    # recover-state needs no store if the host has no quarantined state.
    assert done.returncode != 0 or words == ("recover-state",)
    assert "No such option" not in done.stderr
    assert [path for path in tmp_path.rglob("*") if path != quick.cachedir] == []


@pytest.mark.parametrize(
    "words", [("status",), ("retention",), ("destroy", "--by-name")], ids=" ".join
)
def test_command_in_an_error_contains_the_cachedir(
    quick: QuickProgram, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "empty").mkdir()
    url = f"local://{tmp_path}/empty"
    assert f"s3fs-meta mkfs --cachedir {quick.cachedir} {url}\n" in quick.run(*words, url).stderr


def test_fsck_of_a_path_suggests_the_url(quick: QuickProgram, empty: Place) -> None:
    done = quick.run("fsck", "-n", str(empty.bucket))

    assert f"write local://{empty.bucket}" in done.stderr


@pytest.mark.parametrize(
    ("words", "remains"),
    sampled(
        [
            (("mount", "--mkdir"), "nothing is mounted"),
            (("fsck", "-n"), "nothing was changed"),
            (("rollback", "--at", "txg=1", "--yes"), "nothing was changed"),
            (("reclaim",), "only unneeded objects were deleted"),
            (("restore", "--to", "TARGET"), "nothing was copied"),
            (("fsck", "-p"), "all repairs are undone"),
            (("destroy", "--by-name"), "nothing was removed"),
            (("mkfs", "--plain"), "run mkfs again"),
            (("keep", "--list"), "nothing was changed"),
            (("keep", "--auto"), "the change may be complete nevertheless"),
            (("passphrase",), "nothing was changed"),
        ],
        4,
    ),
)
def test_interrupted_command_leaves_no_directory(
    quick: QuickProgram, tmp_path: Path, silent_endpoint: str, words: tuple[str, ...], remains: str
) -> None:
    """Ctrl-C stops a command that waits for the store, and no directory remains."""
    options = ["--endpoint-url", silent_endpoint, "--cachedir", str(quick.cachedir)]
    command = quick.begin(*completed(words, "s3://bucket/home", tmp_path), *options)
    assert command.stderr is not None
    with command:
        first = command.stderr.readline()
        command.send_signal(signal.SIGINT)
        _out, rest = command.communicate(timeout=PROCESS_S_MAX)

    assert "has not responded yet" in first
    assert f"s3fs-meta: interrupted: {remains}" in rest
    assert command.returncode in {130, 32}  # An interrupted fsck exits with 32; see fsck(8).
    assert [path for path in tmp_path.rglob("*") if path != quick.cachedir] == []


def test_log_of_a_daemon_that_died_at_start_is_kept(
    quick: QuickProgram, tmp_path: Path, silent_endpoint: str
) -> None:
    """If the daemon dies at startup, the error names the file of its log, which is not deleted."""
    words = ("mount", "--mkdir", "s3://bucket/home", str(tmp_path / "mnt"))
    options = ["--endpoint-url", silent_endpoint, "--cachedir", str(quick.cachedir)]
    command = quick.begin(*words, *options)
    assert command.stderr is not None
    with command:
        first = command.stderr.readline()
        [daemon] = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
        os.kill(int(daemon), signal.SIGKILL)
        _out, rest = command.communicate(timeout=PROCESS_S_MAX)

    assert "has not responded yet" in first
    [log] = quick.cachedir.glob("*/mount.log")
    assert f"the mount ended before it was ready; see {log}" in rest
    assert not (tmp_path / "mnt").exists()
