"""``s3fs-meta lock``: make a tree immutable."""

from pathlib import Path
from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.mount import mount_paths
from s3fs_meta.mount.control_api import request_lock

HELP = CommandHelp(
    name="lock",
    summary="Make a file or a whole tree of a mounted filesystem immutable.",
    description=(
        "Nothing in it can be created, written, renamed, removed or given other attributes any more, "
        "by any user, on any host; it can be read and copied. There is no unlocking: s3fs-meta rm "
        "--locked removes it as a whole, and a copy made by s3fs-meta clone is not locked.",
        "What is a hard link to something outside is locked there, too. If the mount ends in the "
        "middle, part of the tree is locked; do it again.",
        "Root may do it, and the user who mounted the filesystem: permissions are not checked.",
    ),
    examples=(Example("s3fs-meta lock /mnt/backup/2025-01", "a backup that is complete"),),
    exits=exits_of(*OF_MOUNT, ExitStatus.LOCAL),
)


def lock(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="Tree to lock.", show_default=False)],
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Carry out the command."""
    found = mount_paths.existing(path, cachedir)
    mount_paths.hand_over(found)
    with TerminalFront() as front:
        result = trio.run(request_lock, found, front)
    if json:
        output.print_json({"path": found.path, "entries": result["entries"]})
