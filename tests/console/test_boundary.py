"""The error boundary: one line, one status."""

import subprocess
import sys

import pytest
import trio

from s3fs_meta.console import boundary
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import HeldError, UsageError


def _raising(exc: BaseException) -> boundary.Body:
    def body() -> None:
        raise exc

    return body


def test_error_is_one_line_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """The line is for the user, the status for scripts."""
    assert boundary.run(_raising(HeldError("held by\n  host 'a'"))) is ExitStatus.HELD

    assert capsys.readouterr().err == "s3fs-meta: held by host 'a'\n"


def test_os_error_names_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """An OSError that the program does not wrap is still one line."""
    error = PermissionError(13, "Permission denied", "/x")

    assert boundary.run(_raising(error)) is ExitStatus.LOCAL
    assert capsys.readouterr().err == "s3fs-meta: /x: Permission denied\n"


def test_bug_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected error prints its traceback for a bug report."""
    assert boundary.run(_raising(RuntimeError("boom"))) is ExitStatus.BUG

    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "RuntimeError: boom" in shown


def test_interrupt_has_its_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    """Control-C ends with the status that shells expect."""
    assert boundary.run(_raising(KeyboardInterrupt())) is ExitStatus.INTERRUPTED
    assert "Traceback" not in capsys.readouterr().err


def test_interrupt_caught_by_the_parser_has_its_own_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The parser turns it into a status without a message."""
    assert boundary.run(lambda: 130) is ExitStatus.INTERRUPTED
    assert capsys.readouterr().err == "s3fs-meta: interrupted\n"


def test_interrupt_in_a_nursery_has_its_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupt in a nursery decides the status, even if other errors follow from it."""

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


def test_success_is_zero() -> None:
    """A body may return nothing, or a status."""
    assert boundary.run(lambda: None) == 0
    assert boundary.run(lambda: 4) == 4


def test_group_with_a_known_error_is_reported_as_that_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A nursery's exception group causes no traceback."""

    class GroupError(Exception):
        exceptions = (UsageError("wrong"),)

    assert boundary.run(_raising(GroupError())) is ExitStatus.USAGE
    assert capsys.readouterr().err == "s3fs-meta: wrong\n"


def test_python_without_assertions_is_refused() -> None:
    """Python -O disables assertions, which the program needs."""
    done = subprocess.run(
        [sys.executable, "-O", "-m", "s3fs_meta", "version"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == ExitStatus.USAGE
    assert "refuses to run under python -O" in done.stderr
