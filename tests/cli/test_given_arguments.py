"""Tests of arguments that the parser refuses if they are empty."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.models import TyperPath

from s3fs_meta.cli import entry
from s3fs_meta.cli.entry import COMMANDS
from s3fs_meta.cli.given_arguments import GivenPath
from s3fs_meta.console.exits import FSCK_USAGE, ExitStatus


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["mount", "local:///x", ""], "MOUNTPOINT"),
        (["mount", "--cachedir", "", "local:///x", "/mnt"], "--cachedir"),
        (["mkfs", "--cachedir=", "local:///x"], "--cachedir"),
        (["mkfs", "--passphrase-file", "", "local:///x"], "--passphrase-file"),
        (["mkfs", "--endpoint-url", "", "s3://bucket/x"], "--endpoint-url"),
        (["umount", ""], "MOUNTPOINT"),
        (["fsck", "-y", "--objects-from", "", "local:///x"], "--objects-from"),
        (["restore", "--to", "", "local:///x"], "--to"),
        (["dropcache", "/x", ""], "PATH"),
        (["status", ""], "MOUNTPOINT|URL"),
        (["keep", "", "name"], "MOUNTPOINT|URL"),
        (["diff", "", "1h"], "PATH|URL"),
        (["diff", "local:///x", "1h", "now", ""], "[PATH]"),
        (["log", "local:///x", ""], "[PATH]"),
        (["versions", "local:///x", ""], "[PATH]"),
        (["restore", "--to", "copy", "local:///x", "a", ""], "[PATH]..."),
    ],
)
def test_empty_argument_is_refused(
    words: list[str],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An empty shell variable must not select the working directory or AWS."""
    monkeypatch.chdir(tmp_path)

    assert entry.main(words) == (FSCK_USAGE if words[0] == "fsck" else ExitStatus.USAGE)

    shown = capsys.readouterr().err
    assert name in shown
    assert "is empty" in shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", COMMANDS)
def test_parsing_a_path_argument_makes_no_system_call(name: str) -> None:
    """stat(2) of a mountpoint, which typer's parser of paths calls, hangs if the daemon hangs."""
    command: Any = typer.main.get_command(entry.make_app([name, "version"]))
    paths = [one for one in command.commands[name].params if isinstance(one.type, TyperPath)]
    assert {type(one.type) for one in paths} <= {GivenPath}
