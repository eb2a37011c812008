"""Tests of the program's command line that do not concern a single command."""

import subprocess
import sys

import pytest

from s3fs_meta.cli import entry
from s3fs_meta.cli.entry import COMMANDS
from tests.polling import PROCESS_S_MAX
from tests.programs import Program

pytestmark = pytest.mark.thorough


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
        (["--show-completion", "fish"], "--show-completion takes no argument"),
        (["--install-completion", "fish"], "--install-completion takes no argument"),
        (["mkfs", "--colour", "local:///x"], "--colour"),
        (["mkfs", "--plain", "ftp://x"], "unknown scheme"),
        (["mount", "-o", "comit=3", "local:///x", "/"], "did you mean 'commit'?"),
    ],
)
def test_invalid_arguments_print_one_line_and_exit_with_2(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """For wrong arguments a command prints a one-line error, without a traceback or a help text."""
    assert entry.main(words) == 2

    shown = capsys.readouterr().err
    assert expected in shown
    assert shown.count("\n") == 1


def test_fsck_with_invalid_arguments_exits_with_16(capsys: pytest.CaptureFixture[str]) -> None:
    """The manual page fsck(8) documents status 16 for wrong arguments."""
    assert entry.main(["fsck", "-n", "-y", "local:///x"]) == 16
    assert entry.main(["fsck", "--nonsense"]) == 16


def test_option_version_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("s3fs-meta ")


def test_program_without_arguments_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """A call without arguments prints the list of commands and exits with status 2."""
    assert entry.main([]) == 2
    assert "mkfs" in capsys.readouterr().out


def test_status_command_loads_only_the_modules_that_it_needs(program: Program) -> None:
    """The status command imports neither pyfuse3 nor boto3 nor fsck."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "s3fs_meta", "status", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=program.environment,
    )

    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "s3fs_meta.mount.requests.control_api" in loaded  # The status command needs this module.
    assert not loaded & {"pyfuse3", "boto3", "pydantic", "s3fs_meta.check.fsck"}


def test_interrupted_program_exits_without_waiting_for_its_threads(program: Program) -> None:
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
        timeout=PROCESS_S_MAX,
    )

    assert done.returncode == 130


@pytest.mark.parametrize("module", ["start", "mount_helper"])
def test_program_can_wait_for_child_processes_if_its_caller_ignores_sigchld(
    program: Program, module: str
) -> None:
    """A process inherits ignored signals; with SIGCHLD ignored, the kernel keeps no exit status."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "sys.argv = ['s3fs-meta', '--nonsense']\n"
        f"from s3fs_meta.cli import {module} as found\n"
        "try:\n"
        "    getattr(found, 'program', None) and found.program() or found.main()\n"
        "except SystemExit:\n"
        "    pass\n"
        "pid = os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {})\n"
        "sys.exit(os.waitpid(pid, 0)[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=program.environment,
        check=False,
    )

    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
