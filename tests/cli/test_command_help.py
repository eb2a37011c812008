"""Tests of the help texts of commands."""

from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.console.exits import ExitStatus


def test_brackets_in_help_texts_are_printed() -> None:
    """Brackets in a help text are printed, although rich would interpret them as markup."""
    words = CommandHelp("x", "S.", ("[bold]d",), (Example("x [A]", "does [B]"),), {0: "done"})

    assert words.text == "S.\n\n\\[bold]d"
    assert "\\[A]" in words.epilog or "[A]" in words.epilog


def test_common_exit_statuses_are_added_to_those_of_a_command() -> None:
    """The common statuses: success, bugs, wrong usage, output that cannot be written, interrupts."""
    assert list(exits_of(ExitStatus.HELD)) == [0, 1, 2, 7, 14, 130]
