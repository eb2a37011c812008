"""``s3fs-meta rm``: remove files and whole trees at once."""

from pathlib import Path
from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import Front, TerminalFront
from s3fs_meta.mount import mount_paths
from s3fs_meta.mount.control_api import request_removal
from s3fs_meta.mount.mount_paths import Entry

HELP = CommandHelp(
    name="rm",
    summary="Remove files and whole trees of a mounted filesystem at once.",
    description=(
        "What is named is gone when the command ends, however large it is. The space comes back in "
        "the background, also after the next mount; files that a process has open can be used until "
        "they are closed. Names in the tree that are hard links to something outside leave that "
        "alone.",
        "The user who mounted the filesystem may remove anything in it, and so may root: permissions "
        "of directories are not checked. There is no way back but a moment of the past (s3fs-meta "
        "restore).",
    ),
    examples=(
        Example("s3fs-meta rm /mnt/home/old", "a directory and all that is in it"),
        Example("s3fs-meta rm /mnt/backup/2024-*", "several"),
        Example("s3fs-meta rm --locked /mnt/backup/2023-01", "that was locked"),
    ),
    exits=exits_of(*OF_MOUNT, ExitStatus.LOCAL),
)


def rm(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Files and trees to remove.", show_default=False),
    ],
    locked: Annotated[
        bool, typer.Option("--locked", help="Also trees that s3fs-meta lock has locked.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until everything is removed.")] = False,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Carry out the command: all paths are checked before the first one is removed."""
    found = [mount_paths.existing(path, cachedir) for path in paths]
    with TerminalFront() as front:
        trio.run(_remove, found, front, locked, wait)
    mount_paths.require_seen(found, there=False)
    if json:
        output.print_json({"removed": [entry.path for entry in found]})


async def _remove(found: list[Entry], front: Front, locked: bool, wait: bool) -> None:
    for entry in found:
        await request_removal(entry, front, locked=locked, wait=wait and entry is found[-1])
