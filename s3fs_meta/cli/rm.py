"""``s3fs-meta rm``: remove files and directory trees of any size instantly."""

from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.cli.given_arguments import GivenPath
from s3fs_meta.console import interruption, output
from s3fs_meta.console.ui import Front, TerminalFront
from s3fs_meta.mount.existing import mount_paths
from s3fs_meta.mount.existing.mount_paths import Entry
from s3fs_meta.mount.requests.control_api import request_removal

HELP = CommandHelp(
    name="rm",
    summary="Remove files and trees of a mounted filesystem instantly.",
    description=(
        "The paths are removed when the command returns, regardless of their size. Their space is "
        "freed in the background, even after a new mount. A process can keep using a file that it "
        "has open, until it closes the file. A file in the tree keeps its hard links outside the "
        "tree.",
        "Only root and the user who mounted the filesystem may use the command. It does not check "
        "permissions. Removed files can only be copied from an earlier point in time (s3fs-meta "
        "restore).",
    ),
    examples=(
        Example("s3fs-meta rm /mnt/home/old", "remove a directory and its tree"),
        Example("s3fs-meta rm /mnt/backup/2024-*", "remove several directories"),
        Example("s3fs-meta rm --locked /mnt/backup/2023-01", "remove a locked directory"),
    ),
    exits=exits_of(*OF_MOUNT),
)


def rm(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="Files and directory trees to remove.",
            click_type=GivenPath(),
        ),
    ],
    locked: Annotated[
        bool,
        typer.Option("--locked", help="Also remove trees that were locked with s3fs-meta lock."),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the space is freed.")] = False,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta rm``: check all given paths, then remove the files and trees."""
    found = mount_paths.changeable(paths, cachedir)
    with (
        interruption.explained(
            "some of the paths may be removed already, and the mount continues to free their space;"
            " remove the remaining paths again"
        ),
        TerminalFront() as front,
    ):
        trio.run(_remove, found, front, locked, wait)
    mount_paths.require_seen(found, there=False)
    if json:
        output.print_json({"removed": [entry.path for entry in found]})


async def _remove(found: list[Entry], front: Front, locked: bool, wait: bool) -> None:
    for entry in found:
        await request_removal(entry, front, locked=locked, wait=wait and entry is found[-1])
