"""Help texts of commands."""

from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.console.exits import ExitStatus


def test_text_in_brackets_is_not_markup() -> None:
    """Texts of the help may contain brackets, which rich treats as markup."""
    words = CommandHelp("x", "S.", ("[bold]d",), (Example("x [A]", "does [B]"),), {0: "done"})

    assert words.text == "S.\n\n\\[bold]d"
    assert "\\[A]" in words.epilog or "[A]" in words.epilog


def test_common_exit_statuses_are_always_listed() -> None:
    """Every help lists the statuses for success, bugs, wrong usage and interrupts, in order."""
    assert list(exits_of(ExitStatus.HELD)) == [0, 1, 2, 7, 130]
