"""``s3fs-meta promote``: make a follower the writer."""

import trio

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.requests.control_api import request_promotion

HELP = CommandHelp(
    name="promote",
    summary="Turn a follower (a mount with -o ro,follow) into the writer.",
    description=(
        "Applies the remaining changes in the bucket, takes the lease with a new epoch, and "
        "accepts changes from then on. Files that are open on this host stay open. While another "
        "host holds the lease, the command is refused, unless --takeover is given: the other "
        "host then turns read-only as soon as it notices, and keeps the changes that it had not "
        "uploaded.",
    ),
    examples=(
        Example("s3fs-meta promote /mnt/home", "become the writer after the old writer unmounted"),
        Example(
            "s3fs-meta promote --takeover /mnt/home",
            "become the writer after the old writer failed",
        ),
    ),
    exits=exits_of(
        ExitStatus.USAGE,
        ExitStatus.HELD,
        ExitStatus.NOT_MOUNTED,
        ExitStatus.STORE,
        ExitStatus.STORE_ACCESS,
        ExitStatus.UNCONDITIONAL,
        ExitStatus.CONTROL,
    ),
)


def promote(
    mountpoint: options.Mountpoint,
    force_takeover: options.ForceTakeover = False,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta promote``: make a follower the writer."""
    place = targets.of_mountpoint(mountpoint, cachedir)
    result = trio.run(lambda: request_promotion(place, takeover=force_takeover))
    if json:
        output.print_json(result)
    else:
        output.print_text(
            f"the mount is the writer now, from transaction group {result['txg'] + 1} on,"
            f" in epoch {result['epoch']}"
        )
