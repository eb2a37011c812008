"""``s3fs-meta clone``: copy a file or a whole tree within a filesystem."""

from pathlib import Path
from typing import Annotated

import trio
import typer

from s3fs_meta.cli import entries, options, output
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.cli.exits import ExitStatus
from s3fs_meta.cli.mount_requests import request_clone
from s3fs_meta.errors import UsageError

HELP = CommandHelp(
    name="clone",
    summary="Copy a file or a whole tree within a mounted filesystem.",
    description=(
        "The copy shares the content of its source until one of them is written to, so it takes "
        "little time and nearly no space. Owners, modes, times, extended attributes, ACLs, holes, "
        "and hard links within the tree are kept. It appears as a whole when it is done, also "
        "when the command was ended before; if the mount ends before, nothing is left.",
        "The source may be in use: each directory is copied as it is when its turn comes, with what "
        "was written before the command began. What is being moved about meanwhile may be in the "
        "copy twice, or not at all.",
        "Root may do it, and whoever mounted the filesystem: permissions are not asked.",
    ),
    examples=(
        Example("s3fs-meta clone /mnt/home/project /mnt/home/project-before", "before a change"),
    ),
    exits=exits_of(
        ExitStatus.USAGE,
        ExitStatus.NOT_MOUNTED,
        ExitStatus.CORRUPTION,
        ExitStatus.LOCAL,
        ExitStatus.REQUEST,
        ExitStatus.CONTROL,
    ),
)


def clone(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="What to copy.", show_default=False)
    ],
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET", help="Its new name, in a directory that exists.", show_default=False
        ),
    ],
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Carry out the command."""
    found, wanted = entries.existing(source, cachedir), entries.free(target, cachedir)
    if found.place != wanted.place:
        raise UsageError(f"{target} is not on the filesystem of {source}")
    entries.hand_over(wanted)
    result = trio.run(request_clone, found, wanted)
    if json:
        output.print_json({"path": wanted.path, "entries": result["entries"]})
