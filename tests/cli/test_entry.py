"""The command line as a whole."""

import os
import subprocess
import sys

import pytest

from s3fs_meta.cli import entry
from s3fs_meta.cli.entry import COMMANDS
from tests.programs import Program


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_examples_and_exit_statuses(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main([name, "--help"]) == 0

    shown = capsys.readouterr().out
    assert f"s3fs-meta {name}" in shown
    assert "Examples" in shown
    assert "Exit status" in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mkfz"], "Did you mean 'mkfs'"),
        (["mkfs"], "Missing argument 'URL'"),
        (["mkfs", "--colour", "local:///x"], "--colour"),
        (["mkfs", "--plain", "ftp://x"], "unknown scheme"),
        (["mount", "-o", "comit=3", "local:///x", "/"], "did you mean 'commit'?"),
    ],
)
def test_wrong_arguments_give_one_line_and_status_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the error, without a traceback or a help page."""
    assert entry.main(words) == 2

    shown = capsys.readouterr().err
    assert expected in shown
    assert shown.count("\n") == 1


def test_wrong_arguments_of_fsck_have_status_16(capsys: pytest.CaptureFixture[str]) -> None:
    """fsck(8) documents status 16 for wrong arguments."""
    assert entry.main(["fsck", "-n", "-y", "local:///x"]) == 16
    assert entry.main(["fsck", "--nonsense"]) == 16


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The option --version prints the version and exits."""
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("s3fs-meta ")


def test_missing_arguments_show_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """A call without arguments prints the commands and has status 2, so that a script fails."""
    assert entry.main([]) == 2
    assert "mkfs" in capsys.readouterr().out


def test_closed_output_pipe_is_no_error(program: Program) -> None:
    done = subprocess.run(
        f"{sys.executable} -m s3fs_meta version | true",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
        env=program.environment,
    )

    assert done.stderr == ""


def test_command_loads_only_what_it_needs(program: Program) -> None:
    """The command status imports neither pyfuse3 nor boto3 nor fsck."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "s3fs_meta", "status", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=program.environment,
    )

    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "s3fs_meta.mount.control_api" in loaded  # the module that the command status needs
    assert not loaded & {"pyfuse3", "boto3", "pydantic", "s3fs_meta.check.fsck"}


def test_interrupted_program_does_not_wait_for_its_threads(program: Program) -> None:
    """The program exits even if one of its threads still waits."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import threading\n"
            "from s3fs_meta.cli import entry\n"
            "threading.Thread(target=threading.Event().wait).start()\n"
            "entry.main = lambda: 130\n"
            "entry.program()",
        ],
        env=program.environment,
        check=False,
        timeout=30,
    )

    assert done.returncode == 130


def test_path_that_is_not_utf8_is_printed_as_it_is() -> None:
    """In most locales Python refuses to print such text."""
    code = (
        "from s3fs_meta.cli import entry; entry.main = lambda: print('\\udcff') or 0;"
        " entry.program()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, b"\xff\n")
