"""The program ``s3fs-meta``: its commands, put together.

Owns: the list of commands. Does not know: what they do.
"""

import sys
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from s3fs_meta.cli import (
    boundary,
    destroy,
    exits,
    flush,
    fsck,
    mkfs,
    mount,
    output,
    passphrase,
    recover_key,
    status,
    umount,
    version,
)
from s3fs_meta.cli.command_help import CommandHelp

SUMMARY: Final = "A POSIX filesystem on a bucket: metadata in SQLite, file data in packs."

COMMANDS: Final[tuple[tuple[CommandHelp, Callable[..., Any]], ...]] = (
    (mkfs.HELP, mkfs.mkfs),
    (mount.HELP, mount.mount),
    (umount.HELP, umount.umount),
    (status.HELP, status.status),
    (flush.HELP, flush.flush),
    (fsck.HELP, fsck.fsck),
    (passphrase.HELP, passphrase.passphrase),
    (recover_key.HELP, recover_key.recover_key),
    (destroy.HELP, destroy.destroy),
    (version.HELP, version.version),
)


def make_app() -> typer.Typer:
    """Return the program with all its commands."""
    app = typer.Typer(
        help=SUMMARY,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for command, function in COMMANDS:
        app.command(command.name, help=command.text, epilog=command.epilog)(function)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        output.print_text(f"s3fs-meta {version.program_version()}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main(arguments: list[str] | None = None) -> int:
    """Run the program and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    status_of_run = boundary.run(
        lambda: make_app()(words, prog_name=boundary.PROGRAM, standalone_mode=False)
    )
    if words[:1] == [fsck.HELP.name] and isinstance(status_of_run, exits.ExitStatus):
        return exits.fsck_status(status_of_run)
    return int(status_of_run)
