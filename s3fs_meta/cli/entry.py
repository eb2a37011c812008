"""The program ``s3fs-meta``: its command-line parser, built from the commands.

Owns: the list of commands. Does not know: the effects of commands.
Keeps: only the module of the requested command is imported. Importing all modules, with SQLite,
FUSE and cryptography, takes twice as long as most commands take to run.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, get_args

import typer

from s3fs_meta.cli import completion, garbage_collection, given_arguments
from s3fs_meta.cli.command_help import CommandHelp
from s3fs_meta.console import boundary, exits, output_stream
from s3fs_meta.errors import UsageError

SUMMARY: Final = "A POSIX filesystem on a bucket: metadata in SQLite, file data in packs."

# Each command is a module with HELP and a function of the same name ("-" becomes "_").
COMMANDS: Final = (
    "mkfs",
    "mount",
    "umount",
    "status",
    "cost",
    "flush",
    "set",
    "warm",
    "pins",
    "unpin",
    "dropcache",
    "clone",
    "rm",
    "lock",
    "promote",
    "retention",
    "keep",
    "reclaim",
    "fsck",
    "log",
    "versions",
    "diff",
    "browse",
    "restore",
    "rollback",
    "passphrase",
    "recover-key",
    "recover-state",
    "destroy",
    "bench",
    "version",
)

_DETECTING: Final = ("--show-completion", "--install-completion")  # typer's options


def load(command: str) -> tuple[CommandHelp, Callable[..., Any]]:
    """Return the help text of a command and its function."""
    name = command.replace("-", "_")
    module = importlib.import_module(f"s3fs_meta.cli.{name}")
    assert module.HELP.name == command, "a module must have the name of its command"
    return module.HELP, getattr(module, name)


def make_app(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """Return a command-line parser for the given commands."""
    app = typer.Typer(
        help=SUMMARY,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for command in commands:
        words, function = load(command)
        app.command(command, help=words.text, epilog=words.epilog)(flat(function))
    return app


def flat(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that takes the fields of each dataclass parameter as separate parameters."""
    parameters: list[inspect.Parameter] = []
    structs: dict[str, type] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind = parameter.annotation
        if isinstance(kind, type) and is_dataclass(kind):
            structs[name] = kind
            parameters += inspect.signature(kind).parameters.values()
        else:
            parameters.append(parameter)

    def call(**given: Any) -> Any:
        for name, kind in structs.items():
            given[name] = kind(**{one.name: given.pop(one.name) for one in fields(kind)})
        from s3fs_meta.console import logs  # help and completion do not need logging

        garbage_collection.begin()
        logs.to_lines(partial(boundary.print_line, boundary.PROGRAM))
        return function(**given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        one.replace(kind=keyword, annotation=_without_empty_path(one.annotation))
        for one in parameters
    ]
    signature = inspect.Signature(parameters)
    call.__signature__ = signature  # type: ignore[attr-defined]  # typer uses this signature
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return call


def _without_empty_path(annotation: Any) -> Any:
    """Return the annotation of a parameter; a path or a list of paths is parsed by ``GivenPath``."""
    kind, *about = get_args(annotation) or (annotation,)
    if Path not in {kind, *get_args(kind)}:
        return annotation
    parser = {"click_type": given_arguments.GivenPath()}
    arguments = (kind, *(type(info)(**(vars(info) | parser)) for info in about))
    return Annotated[arguments]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # a slow import that only --version needs

        sys.stdout.write(f"s3fs-meta {metadata.version('s3fs-meta')}\n")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Process the options that precede the name of the command, such as --version."""


def _refuse_shell(words: Sequence[str]) -> None:
    """Raise UsageError if the name of a shell follows an option that detects the shell.

    The parser would ignore the name, and use the shell that runs the command.
    """
    if len(words) > 1 and words[0] in _DETECTING:
        raise UsageError(f"{words[0]} takes no argument: run it in the shell that needs completion")


def main(arguments: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    typed = completion.typed_arguments(os.environ)
    named = [word for word in (words if typed is None else typed)[:1] if word in COMMANDS]

    def run() -> Any:
        _refuse_shell(words)
        app = make_app(named or COMMANDS)
        return app(words, prog_name=boundary.PROGRAM, standalone_mode=False)

    status = boundary.run(run)
    if named == ["fsck"] and isinstance(status, exits.ExitStatus):
        return exits.fsck_status(status)
    return int(status)


def program() -> NoReturn:
    """Run the program and exit."""
    output_stream.install()
    status = main()
    if status in {exits.ExitStatus.INTERRUPTED, exits.FSCK_CANCELLED}:
        # Skip Python's normal exit, which may wait forever for a thread with an interrupted start.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
