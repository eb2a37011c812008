"""The structure of a command's help, from which ``--help``, web pages and man pages are made.

Owns: the structure of the texts. Does not know: the commands.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from s3fs_meta.console.exits import MEANINGS, ExitStatus

# Exit statuses of commands that open a bucket (OF_BUCKET) or send a request to a mount (OF_MOUNT).
OF_BUCKET: Final = (
    ExitStatus.PASSPHRASE,
    ExitStatus.SETTINGS,
    ExitStatus.NO_FILESYSTEM,
    ExitStatus.STORE,
    ExitStatus.STORE_ACCESS,
    ExitStatus.CORRUPTION,
    ExitStatus.CONTROL,  # a local:// bucket may be in a mount whose daemon does not answer
)
OF_MOUNT: Final = (ExitStatus.NOT_MOUNTED, ExitStatus.REQUEST, ExitStatus.CONTROL)


class Example(NamedTuple):
    """An example of a command line, with its effect."""

    command: str
    does: str


class CommandHelp(NamedTuple):
    """The texts of one command: summary, description, examples, exits."""

    name: str
    summary: str  # first line of the help: one sentence
    description: tuple[str, ...]  # paragraphs of the help below the summary
    examples: tuple[Example, ...]
    exits: Mapping[int, str]

    @property
    def text(self) -> str:
        """Return the text above the options in ``--help``."""
        return _escaped("\n\n".join([self.summary, *self.description]))

    @property
    def epilog(self) -> str:
        """Return the text below the options in ``--help``."""
        examples = [
            f"  {_escaped(one.command)}\n      {_escaped(one.does)}" for one in self.examples
        ]
        exits = [f"  {status:>3}  {_escaped(meaning)}" for status, meaning in self.exits.items()]
        # The character \b makes click keep the line breaks of the paragraph.
        return "\n\n".join(
            [
                "\b\n[bold]Examples[/bold]\n" + "\n".join(examples),
                "\b\n[bold]Exit status[/bold]\n" + "\n".join(exits),
            ]
        )


def _escaped(text: str) -> str:
    """Return a text in which rich finds no markup. Only a bracket or a backslash needs escapes."""
    if not {"[", "\\"} & {*text}:
        return text
    from rich.markup import escape  # a slow import that few texts need

    return escape(text)


def exits_of(*statuses: ExitStatus) -> dict[int, str]:
    """Return the exit statuses of a command in ascending order, with their meanings."""
    always = (ExitStatus.DONE, ExitStatus.BUG, ExitStatus.USAGE, ExitStatus.LOCAL)
    wanted = {*always, *statuses, ExitStatus.INTERRUPTED}
    return {int(status): MEANINGS[status] for status in sorted(wanted)}
