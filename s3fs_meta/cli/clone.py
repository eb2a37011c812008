"""``s3fs-meta clone``: copy a file or a whole tree within a filesystem."""

from pathlib import Path
from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import interruption, output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.limits import FREEZE_S_DEFAULT, FREEZE_S_MAX, FREEZE_S_MIN
from s3fs_meta.mount import mount_paths
from s3fs_meta.mount.control_api import request_clone, request_frozen_clone

HELP = CommandHelp(
    name="clone",
    summary="Copy a file or a whole tree within a mounted filesystem.",
    description=(
        "The copy shares the content of its source until either is written to, so it takes "
        "little time and nearly no space. It has the same owners, modes, times, extended "
        "attributes, ACLs, holes, and hard links within the tree. The copy appears only when it "
        "is complete, also if the command was interrupted. If the filesystem is unmounted "
        "before, no part of it appears.",
        "The source may be in use: each directory is copied at another time, with all data that "
        "was written before the command began. The copy may have entries that are moved "
        "meanwhile twice, or lack them.",
        "With --freeze the copy is a consistent snapshot of the source at one point in time. "
        "Processes that write in the source are blocked until the copy is complete, and get no "
        "error. If the copy takes longer than --freeze-max, the processes continue, no copy is "
        "made, and the command reports this. They also continue if the command is interrupted.",
        "Only root and the user who mounted the filesystem may use the command, which checks no "
        "permissions.",
    ),
    examples=(
        Example("s3fs-meta clone /mnt/home/project /mnt/home/project-before", "before a change"),
        Example("s3fs-meta clone --freeze /mnt/home/db /mnt/home/db-copy", "while it is in use"),
    ),
    exits=exits_of(*OF_MOUNT, ExitStatus.CORRUPTION, ExitStatus.LOCAL),
)


def clone(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="File or directory to copy.", show_default=False),
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="Path of the copy, in an existing directory.", show_default=False
        ),
    ],
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Block processes that write in the source.")
    ] = False,
    freeze_max: Annotated[
        float,
        typer.Option(
            "--freeze-max",
            metavar="SECONDS",
            min=FREEZE_S_MIN,
            max=FREEZE_S_MAX,
            help="Longest time for which --freeze blocks processes.",
        ),
    ] = FREEZE_S_DEFAULT,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta clone``."""
    found = mount_paths.existing(source, cachedir)
    wanted = mount_paths.free(target, cachedir, near=found)
    mount_paths.hand_over(wanted)
    with interruption.explained(_remains(wanted.path, freeze=freeze)), TerminalFront() as front:
        if freeze:
            result = trio.run(request_frozen_clone, found, wanted, front, freeze_max)
        else:
            result = trio.run(request_clone, found, wanted, front)
    mount_paths.require_seen([wanted], there=True)
    if json:
        output.print_json({"path": wanted.path, "entries": result["entries"]})


def _remains(path: str, *, freeze: bool) -> str:
    """Describe the state that an interruption leaves."""
    if freeze:
        return "no copy is made, and the blocked processes continue"
    return f"the mount continues to copy; {path} appears when the copy is complete"
