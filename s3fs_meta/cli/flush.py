"""``s3fs-meta flush``: upload all changes of a mount to the bucket."""

from typing import Annotated, Any

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import interruption, output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.interruption import Remains
from s3fs_meta.console.ui import Front, TerminalFront
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.control_api import request_flush
from s3fs_meta.mount.requests.upload_watch import UploadWatch

HELP = CommandHelp(
    name="flush",
    summary="Upload all changes of a mount to the bucket, and wait for the uploads.",
    description=(
        "Uploads the dirty blocks of the local cache and the changes of the metadata. After the "
        "command, the bucket has everything that was written before the command began, so none of "
        "it is lost if this host is lost. The command reports if recent data of open files may be "
        "missing, because programs write faster than the kernel sends their data. The filesystem "
        "stays mounted and usable.",
    ),
    examples=(
        Example("s3fs-meta flush /mnt/home", "upload everything, for example after a copy"),
        Example(
            "s3fs-meta flush --json /mnt/home", "also print the last transaction group as JSON"
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
            "--image", help="Also upload a complete metadata image, from which restores can start."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta flush``: upload all changes of a mount to the bucket."""
    place = targets.of_mountpoint(mountpoint, cachedir)
    where = place.mountpoint or mountpoint
    again = options.command("flush", *(["--image"] if image else []), where, cachedir=cachedir)
    advice = f"{where} stays mounted and continues to upload; to wait for it, run: {again}"
    with (
        interruption.explained("nothing was uploaded") as remains,
        TerminalFront(quiet=json) as front,
    ):
        result = trio.run(_flush, place, front, image, remains, advice)
        if result["uncollected"]:
            front.notice(
                f"the bucket may lack recent data of open files: {result['uncollected']};"
                f" to upload it, run: {again}"
            )
    if json:
        output.print_json(result)
    elif result["published"]:
        output.print_text(f"the bucket has all changes up to transaction group {result['txg']}")
    else:
        output.print_text("the bucket already has all changes")
    # A mount of an earlier version does not report the txg of the image.
    if not json and "image_txg" in result:
        output.print_text(f"uploaded an image of transaction group {result['image_txg']}")


async def _flush(
    place: Target, front: Front, image: bool, remains: Remains, advice: str
) -> dict[str, Any]:
    async with UploadWatch(place, front, remains, advice).running():
        done = await request_flush(place, front, image)
    done.setdefault("uncollected", "")  # a mount of an earlier version does not report it
    return done
