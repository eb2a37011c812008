"""Tests of the error boundary, which turns an exception into one line and an exit status."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from s3fs_meta.cli import entry
from s3fs_meta.console import boundary
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.interruption import InterruptedCommandError
from s3fs_meta.errors import HeldError, UsageError
from tests.cli.conftest import Place
from tests.faults import raising
from tests.polling import PROCESS_S_MAX
from tests.programs import Program

pytestmark = pytest.mark.thorough


def _raising(exc: BaseException) -> boundary.Body:
    return raising(exc)


def test_expected_error_is_printed_in_one_line_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert boundary.run(_raising(HeldError("held by\n  host 'a  b'"))) is ExitStatus.HELD

    assert capsys.readouterr().err == "s3fs-meta: held by host 'a  b'\n"


@pytest.mark.parametrize("path", ["/x", b"/x", Path("/x")])
def test_os_error_is_printed_with_the_path_of_its_file(
    capsys: pytest.CaptureFixture[str], path: str | bytes | Path
) -> None:
    """An OSError that no module converts is printed in one line with the path of its file."""
    error = PermissionError(13, "Permission denied", path)

    assert boundary.run(_raising(error)) is ExitStatus.LOCAL
    assert capsys.readouterr().err == "s3fs-meta: /x: Permission denied\n"


@pytest.fixture
def _removed_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()


@pytest.mark.usefixtures("_removed_working_directory")
def test_removed_working_directory_is_named_as_the_cause(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error of getcwd(2) does not name a path."""
    assert boundary.run(lambda: len(os.path.abspath("x"))) is ExitStatus.LOCAL
    assert capsys.readouterr().err.startswith("s3fs-meta: the working directory was removed")


@pytest.mark.usefixtures("_removed_working_directory")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ECONNREFUSED])
def test_removed_working_directory_is_not_blamed_for_another_error(
    capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """Not only getcwd(2) fails with an error without a path."""
    assert boundary.run(_raising(OSError(code, os.strerror(code)))) is ExitStatus.LOCAL
    assert capsys.readouterr().err == f"s3fs-meta: {os.strerror(code)}\n"


def test_existing_working_directory_is_not_blamed(capsys: pytest.CaptureFixture[str]) -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file or directory")
    assert boundary.run(_raising(error)) is ExitStatus.LOCAL
    assert capsys.readouterr().err == "s3fs-meta: No such file or directory\n"


def test_unexpected_error_prints_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert boundary.run(_raising(RuntimeError("boom"))) is ExitStatus.BUG

    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "RuntimeError: boom" in shown


def test_shortage_of_threads_is_reported_with_the_limit_and_not_as_a_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Python raises a RuntimeError if no thread can be started."""
    error = RuntimeError("can't start new thread")
    assert boundary.run(_raising(error)) is ExitStatus.LOCAL
    printed = capsys.readouterr().err
    assert printed.startswith("s3fs-meta: no thread can be started")
    assert printed.count("\n") == 1


def test_interrupted_program_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends the program with status 130, which shells expect."""
    assert boundary.run(_raising(KeyboardInterrupt())) is ExitStatus.INTERRUPTED
    assert "Traceback" not in capsys.readouterr().err


def test_interrupted_command_prints_the_changes_that_it_has_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = _raising(InterruptedCommandError("nothing was changed"))

    assert boundary.run(body) is ExitStatus.INTERRUPTED
    assert capsys.readouterr().err == "s3fs-meta: interrupted: nothing was changed\n"


def test_command_line_parser_turns_an_interrupt_into_exit_status_130(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If the command line parser catches Ctrl-C, the status is 130 and no message is printed."""
    assert boundary.run(lambda: 130) is ExitStatus.INTERRUPTED
    assert capsys.readouterr().err == "s3fs-meta: interrupted\n"


def test_interrupt_in_a_task_group_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    """If a task is interrupted, the exit status is 130, even if other tasks also fail."""

    async def wait() -> None:
        async with trio.open_nursery():
            try:
                raise KeyboardInterrupt
            finally:
                raise UsageError("a consequence")

    async def outer() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            raise KeyboardInterrupt

    assert boundary.run(lambda: trio.run(outer)) is ExitStatus.INTERRUPTED
    assert capsys.readouterr().err == "s3fs-meta: interrupted\n"


def test_error_boundary_returns_the_exit_status_of_the_command() -> None:
    assert boundary.run(lambda: None) == 0
    assert boundary.run(lambda: 4) == 4


def test_exception_group_with_one_expected_error_is_reported_as_that_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class GroupError(Exception):
        exceptions = (UsageError("wrong"),)

    assert boundary.run(_raising(GroupError())) is ExitStatus.USAGE
    assert capsys.readouterr().err == "s3fs-meta: wrong\n"


def test_program_refuses_to_run_if_python_ignores_assertions() -> None:
    done = _run("-O", "-m", "s3fs_meta", "version")

    assert done.returncode == ExitStatus.USAGE
    assert "refuses to run under python -O" in done.stderr


def test_control_characters_in_an_error_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    """An error message escapes control characters in object keys and process names."""
    boundary.print_line("s3fs-meta", "used by x\x1b[2J\nsecond line")

    assert capsys.readouterr().err == "s3fs-meta: used by x\\x1b[2J\nsecond line\n"


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """Yield a pipe whose reader has exited, as ``head`` does before all output is written."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.fixture
def full_disk() -> Iterator[int]:
    """Yield a file on a full disk."""
    with open("/dev/full", "wb") as full:
        yield full.fileno()


def _run(
    *words: str, stdout: int | None = None, stderr: int = subprocess.PIPE
) -> "subprocess.CompletedProcess[str]":
    """Run Python with buffered streams."""
    buffered = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return subprocess.run(
        [sys.executable, *words],
        stdout=stdout,
        stderr=stderr,
        text=True,
        check=False,
        env=buffered,
    )


@pytest.mark.parametrize(
    "words", [["--help"], ["log", "--help"], ["version"], ["version", "--json"]]
)
def test_closed_output_pipe_causes_no_error_message(closed_pipe: int, words: list[str]) -> None:
    done = _run("-m", "s3fs_meta", *words, stdout=closed_pipe)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", ["plain", "rich"])
def test_closed_output_pipe_is_ignored_in_a_command_with_several_tasks(
    closed_pipe: int, how: str
) -> None:
    """In a task, printing to a closed pipe raises an exception group; rich raises SystemExit."""
    printing = (
        "import sys, trio; from rich.console import Console\n"
        "from s3fs_meta.console import boundary, output_stream\n"
        "async def main():\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(trio.sleep_forever)\n"
        "        Console().print('text') if sys.argv[1] == 'rich' else print('text', flush=True)\n"
        "output_stream.install()\n"
        "sys.exit(boundary.run(lambda: trio.run(main)))"
    )
    done = _run("-c", printing, how, stdout=closed_pipe)

    assert (done.returncode, done.stderr) == (0, "")


def test_closed_output_pipe_does_not_change_the_status_of_a_finished_command(
    closed_pipe: int,
) -> None:
    """The output is written when the command ends, so the result of the command is known."""
    printing = (
        "import sys; from s3fs_meta.console import boundary, output_stream; output_stream.install();"
        "sys.exit(boundary.run(lambda: sys.stdout.write('damaged') and 4))"
    )
    done = _run("-c", printing, stdout=closed_pipe)

    assert (done.returncode, done.stderr) == (4, "")


def test_broken_pipe_that_is_not_standard_output_is_an_error(closed_pipe: int) -> None:
    """A question or a request that cannot be written must not look like success."""
    code = (
        "import sys; from s3fs_meta.console import boundary, ui\n"
        "sys.exit(boundary.run(lambda: ui.confirmed('Repair?')))"
    )
    assert _run("-c", code, stderr=closed_pipe).returncode == ExitStatus.LOCAL


def test_command_fails_if_it_cannot_write_its_question(
    program: Program, place: Place, closed_pipe: int
) -> None:
    """typer replaces the error with SystemExit(1), which fsck would use for "errors corrected"."""
    ours, terminal = os.openpty()
    words = ("destroy", "--cachedir", program.cachedir, place.url)
    try:
        with program.begin(*words, stdin=terminal, stderr=closed_pipe) as process:
            assert process.wait(PROCESS_S_MAX) == ExitStatus.LOCAL
    finally:
        os.close(ours)
        os.close(terminal)


@pytest.mark.parametrize("words", [["fsck", "-n", "local:///nowhere"], ["flush", "/"]])
def test_closed_error_pipe_does_not_change_the_exit_status(
    closed_pipe: int, words: list[str]
) -> None:
    """A program that reads both streams, such as ``grep -q``, may exit before the command ends."""
    done = _run("-m", "s3fs_meta", *words, stdout=closed_pipe, stderr=closed_pipe)

    assert done.returncode == 8


def test_output_to_a_full_disk_fails_with_the_exit_status_for_a_full_disk(full_disk: int) -> None:
    """If the program did not handle the error, Python would exit with status 120."""
    done = _run("-m", "s3fs_meta", "version", stdout=full_disk)

    assert done.returncode == ExitStatus.LOCAL
    assert ExitStatus.LOCAL in entry.load("version")[0].exits
    assert done.stderr == (
        "s3fs-meta: the result cannot be written to standard output: No space left on device\n"
    )


def test_error_that_cannot_be_written_to_a_full_disk_does_not_change_the_exit_status(
    full_disk: int,
) -> None:
    done = _run("-m", "s3fs_meta", "flush", "/", stderr=full_disk)

    assert done.returncode == ExitStatus.NOT_MOUNTED
