"""Tests of notices, progress bars and questions on a terminal."""

import contextlib
import io
import os
import pty
import subprocess
import sys

import pytest

from s3fs_meta.console.ui import TerminalFront, confirmed
from tests.polling import PROCESS_S_MAX


def test_notice_is_one_line_with_the_program_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The program name distinguishes a notice from other output of a script."""
    with TerminalFront() as front:
        front.notice("waiting [red]")

    assert capsys.readouterr().err == "s3fs-meta: waiting [red]\n"


def test_progress_bars_are_not_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalFront() as front:
        for done in range(100):
            front.progress("blocks", done, 100)

    assert capsys.readouterr().err == ""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the library for progress bars draw as on a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("terminal")
def test_progress_bars_and_notices_are_shown_on_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A notice is printed above the progress bars."""
    with TerminalFront() as front:
        front.progress("blocks", 2, 4)
        front.notice("hello")
        front.ready()
        shown = capsys.readouterr().err
        front.progress("nothing to do", 0, 0)

    assert "blocks" in shown
    assert " 50%" in shown
    assert "s3fs-meta: hello" in shown
    assert "100%" in capsys.readouterr().err


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.usefixtures("terminal")
def test_progress_bar_is_full_after_a_successful_command(
    capsys: pytest.CaptureFixture[str], fails: bool
) -> None:
    """The progress bar of a successful command is full, even if the last report was skipped."""
    with contextlib.suppress(KeyboardInterrupt), TerminalFront() as front:
        front.progress("copying", 22, 100)
        if fails:
            raise KeyboardInterrupt

    assert (" 22%" if fails else "100%") in capsys.readouterr().err


@pytest.mark.usefixtures("terminal")
def test_long_notice_above_progress_bars_is_printed_on_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A notice is not wrapped, so that the user can copy a long URL or command from it."""
    text = "to wait for the upload, run: s3fs-meta flush /mnt/" + "home/" * 40
    with TerminalFront() as front:
        front.progress("blocks", 2, 4)
        front.notice(text)

    assert text in capsys.readouterr().err


@pytest.mark.parametrize("call", ["progress('blocks', 2, 4)", "notice('hello')", "ready()"])
def test_closed_terminal_does_not_end_the_command(call: str) -> None:
    """A mount in the foreground, for example under nohup, must outlast its terminal."""
    code = (
        "import os, sys\n"
        "from s3fs_meta.console.boundary import run\n"
        "from s3fs_meta.console.ui import TerminalFront\n"
        "def body():\n"
        "    with TerminalFront() as front:\n"
        "        front.progress('blocks', 1, 4)\n"
        "        os.write(1, b'drawn\\n')\n"
        "        sys.stdin.read()\n"
        f"        front.{call}\n"
        "sys.exit(run(body))\n"
    )
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    assert command.stdout is not None
    assert command.stdout.readline() == b"drawn\n"
    os.close(ours)

    command.communicate(timeout=PROCESS_S_MAX)

    assert command.returncode == 0


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("y\n", True), ("Yes \n", True), ("n\n", False), ("\n", False), ("", False)],
)
def test_only_the_answers_y_and_yes_are_a_confirmation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str, expected: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))

    assert confirmed("Repair?") is expected

    assert capsys.readouterr() == ("", "Repair? [y/N]: " + ("" if typed else "\n"))


def test_input_that_is_not_utf_8_is_no_confirmation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"))

    assert not confirmed("Repair?")

    assert capsys.readouterr() == ("", "Repair? [y/N]: \n")
