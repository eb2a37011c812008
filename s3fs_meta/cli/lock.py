"""``s3fs-meta lock``: make a tree immutable."""

from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.cli.given_arguments import GivenPath
from s3fs_meta.console import output
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.mount.existing import mount_paths
from s3fs_meta.mount.requests.control_api import request_lock

HELP = CommandHelp(
    name="lock",
    summary="Make a file or a tree of a mounted filesystem immutable.",
    description=(
        "From then on, no user on any host can create, write, rename or remove an entry of the "
        "tree, or change its attributes. The tree can still be read and copied. A tree cannot be "
        "unlocked: s3fs-meta rm --locked removes the whole tree, and a copy made by s3fs-meta "
        "clone is not locked.",
        "A file with a hard link outside the tree is also locked under that name. If the "
        "filesystem is unmounted before the command returns, only part of the tree is locked; run "
        "the command again.",
        "Only root and the user who mounted the filesystem may use the command. It does not check "
        "permissions.",
    ),
    examples=(Example("s3fs-meta lock /mnt/backup/2025-01", "lock a complete backup"),),
    exits=exits_of(*OF_MOUNT),
)


def lock(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="Directory tree to lock.",
            click_type=GivenPath(),
        ),
    ],
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta lock``: make a tree immutable."""
    (found,) = mount_paths.changeable([path], cachedir)
    mount_paths.hand_over(found)
    with TerminalFront() as front:
        result = trio.run(request_lock, found, front)
    if json:
        output.print_json({"path": found.path, "entries": result["entries"]})
