"""``s3fs-meta flush``: upload all changes of a mount to the bucket."""

from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.mount import targets
from s3fs_meta.mount.control_api import request_flush

HELP = CommandHelp(
    name="flush",
    summary="Upload all changes of a mount to the bucket, and wait for the uploads.",
    description=(
        "Uploads the dirty blocks of the local cache and the changes of the metadata. After the "
        "command, the bucket has everything that was written before the command began, so a loss "
        "of this machine costs none of it. The filesystem stays mounted and usable meanwhile.",
    ),
    examples=(
        Example("s3fs-meta flush /mnt/home", "after an important copy"),
        Example(
            "s3fs-meta flush --json /mnt/home", "prints the last transaction group in the bucket"
        ),
    ),
    exits=exits_of(
        *OF_MOUNT,
        ExitStatus.STORE,
        ExitStatus.STORE_ACCESS,
        ExitStatus.CORRUPTION,
        ExitStatus.FENCED,
    ),
)


def flush(
    mountpoint: options.Mountpoint,
    cachedir: options.Cachedir = None,
    image: Annotated[
        bool,
        typer.Option(
            "--image", help="Also upload a complete metadata image; restores start from it."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta flush``."""
    place = targets.of_mountpoint(mountpoint, cachedir)
    with TerminalFront() as front:
        result = trio.run(request_flush, place, front, image)
    if json:
        output.print_json(result)
    elif result["published"]:
        output.print_text(f"the bucket holds everything up to transaction group {result['txg']}")
    else:
        output.print_text("the bucket already holds everything")
