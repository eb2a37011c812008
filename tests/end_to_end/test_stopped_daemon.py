"""Commands for paths in the mount of a daemon that does not answer."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from s3fs_meta.cli import entry
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.control.plain_call import Patience
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount_errors import SilentDaemonError
from tests.cli.conftest import Place
from tests.programs import Program, suspend

pytestmark = pytest.mark.mount


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return the command, which is run in processes that can be killed while they hang."""
    return Program(tmp_path / "state")


@pytest.fixture
def tree(program: Program, place: Place, tmp_path: Path) -> Iterator[Path]:
    """Yield a directory in the mount of a stopped daemon, whose names the kernel has not cached."""
    program.ok("mount", place.url, place.mountpoint)
    pid = int(program.status(place.mountpoint)["pid"])
    (place.mountpoint / "tree").mkdir()
    (tmp_path / "link").symlink_to(place.mountpoint / "tree")
    suspend(pid)
    yield place.mountpoint / "tree"
    os.kill(pid, signal.SIGCONT)
    program.ok("umount", place.mountpoint)


def test_commands_for_paths_in_a_mount_do_not_wait_forever_for_a_stopped_daemon(
    tree: Path, program: Program, place: Place, tmp_path: Path
) -> None:
    """Each command fails with the status for a daemon that does not answer, as its help says."""
    path = tree / "absent" / "file"
    url = f"local://{path}"
    commands: list[tuple[str | Path, ...]] = [
        ("status", path),
        ("rm", path),
        ("rm", tmp_path / "link" / "file"),
        ("clone", path, tree / "copy"),
        ("clone", "--at=1h", path, tree / "copy"),
        ("log", path),
        ("warm", path),
        ("lock", path),
        ("set", path),
        ("mount", place.url, path),
        ("restore", place.url, "--to", path),
        ("bench", path),
        *((name, path) for name in ("browse", "cost", "versions")),
        ("diff", path, "1h"),
        ("mkfs", "--plain", url),
        ("mount", url, place.bucket),
        ("log", url),
        ("retention", url),
        ("restore", url, "--to", tmp_path / "restored"),
    ]
    with ThreadPoolExecutor(len(commands)) as threads:
        done = list(threads.map(lambda words: program.run(*words, here=False), commands))

    for words, one in zip(commands, done, strict=True):
        assert one.returncode == ExitStatus.CONTROL, (words, one.stderr)
        assert ExitStatus.CONTROL in entry.load(str(words[0]))[0].exits
        assert "did not answer within 30 s" in one.stderr


def test_stopped_daemon_is_detected_even_if_its_mount_note_is_unreadable(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon of another user may serve this user, who cannot read the note of the mount."""
    monkeypatch.setattr(targets, "notes_dir", lambda: tree.parents[1] / "absent")
    soon = Patience(answer_s=0.1)

    targets.require_answers([tree.parent], at_end=False, patience=soon)
    with pytest.raises(SilentDaemonError, match=f"the daemon of {tree.parent} did not answer"):
        targets.require_answers([tree.parent], patience=soon)
