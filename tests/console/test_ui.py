"""Progress and questions on a terminal."""

import pytest

from s3fs_meta.console.ui import TerminalFront


def test_notice_is_one_line_with_the_programs_name(capsys: pytest.CaptureFixture[str]) -> None:
    """The name distinguishes notices from other output of a script."""
    with TerminalFront() as front:
        front.notice("waiting [red]")

    assert capsys.readouterr().err == "s3fs-meta: waiting [red]\n"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Log files do not get progress bars."""
    with TerminalFront() as front:
        for done in range(100):
            front.progress("blocks", done, 100)

    assert capsys.readouterr().err == ""


def test_bars_are_shown_on_a_terminal_and_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notices are printed above the bars."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with TerminalFront() as front:
        front.progress("blocks", 2, 4)
        front.notice("hello")
        front.ready()

    shown = capsys.readouterr().err
    assert "blocks" in shown
    assert "s3fs-meta: hello" in shown


def test_progress_bar_without_work_is_full(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar at 0 % would look as if the command hung."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with TerminalFront() as front:
        front.progress("blocks", 0, 0)

    assert "100%" in capsys.readouterr().err
