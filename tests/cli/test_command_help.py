"""Tests of the help texts of commands."""

from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.console.exits import ExitStatus


def test_brackets_in_help_texts_are_printed() -> None:
    """Brackets in a help text are printed, although rich would interpret them as markup."""
    words = CommandHelp("x", "S.", ("[bold]d",), (Example("x [A]", "does [B]"),), {0: "done"})

    assert words.text == "S.\n\n\\[bold]d"
    assert "\\[A]" in words.epilog or "[A]" in words.epilog


def test_help_of_every_command_lists_the_common_exit_statuses() -> None:
    """Each help text lists the statuses of success, bugs, wrong usage and interrupts, in order."""
    assert list(exits_of(ExitStatus.HELD)) == [0, 1, 2, 7, 130]
