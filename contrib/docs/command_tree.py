"""The commands with their options as data, for generated pages, man pages and tests.

Owns: reading the commands from the Typer program. Does not know: their presentation.
"""

from typing import Any, NamedTuple

import typer.main

from s3fs_meta.cli.command_help import CommandHelp
from s3fs_meta.cli.entry import COMMANDS, load, make_app


class Parameter(NamedTuple):
    """One option or argument of a command."""

    names: tuple[str, ...]  # All spellings of an option, longest first; or the name of an argument.
    takes: str  # Placeholder of an option's value; empty for a flag.
    text: str
    default: str  # Default value; empty if there is none, or if the text contains the default.
    required: bool


class Command(NamedTuple):
    """One command with its help texts, arguments and options."""

    words: CommandHelp
    arguments: tuple[Parameter, ...]
    options: tuple[Parameter, ...]

    @property
    def usage(self) -> str:
        """Return the usage line that shows the syntax of the command."""
        return " ".join(
            ["s3fs-meta", self.words.name, "[OPTIONS]", *(one.names[0] for one in self.arguments)]
        )


def read() -> list[Command]:
    """Return the commands in the order of ``--help``."""
    group: Any = typer.main.get_command(make_app())
    return [_command(load(name)[0], group.commands[name]) for name in COMMANDS]


def _command(words: CommandHelp, found: Any) -> Command:
    arguments, options = [], []
    for param in found.params:
        if param.param_type_name == "argument":
            arguments.append(_argument(param))
        elif not param.hidden:
            options.append(_option(param))
    return Command(words, tuple(arguments), tuple(options))


def _argument(param: Any) -> Parameter:
    return Parameter((param.metavar or param.name.upper(),), "", param.help, "", param.required)


def _option(param: Any) -> Parameter:
    shown = param.show_default and param.default not in {None, False, ""}
    return Parameter(
        names=tuple(sorted(param.opts, key=len, reverse=True)),
        takes="" if param.is_flag else param.metavar,
        text=param.help,
        default=str(param.default) if shown else "",
        required=param.required,
    )
