"""``s3fs-meta reclaim``: delete the objects that no retained point in time needs."""

from typing import Annotated, Any

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.cli.keep import Opening, opened_session
from s3fs_meta.console import interruption, output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.limits import LOCK_WAIT_S
from s3fs_meta.mount.requests.control_api import request_reclaim
from s3fs_meta.mount_errors import NotMountedError
from s3fs_meta.sync.host_state.state_dir import without_new_remains
from s3fs_meta.sync.volume import OpenOptions

HELP = CommandHelp(
    name="reclaim",
    summary="Delete the objects that no retained point in time needs.",
    description=(
        "A mount does this automatically after each image and every ten minutes, or once a day if "
        "nothing changes. If the filesystem is "
        "mounted on this host, the command sends a request to the mount; otherwise it opens the "
        "filesystem as a mount does. It never deletes objects that this filesystem did not "
        "write, nor the last two images and the objects that they need.",
    ),
    examples=(
        Example("s3fs-meta reclaim --dry-run /mnt/home", "show what would be deleted"),
        Example("s3fs-meta reclaim s3://bucket/home", "delete the objects"),
    ),
    exits=exits_of(*OF_BUCKET, *OF_MOUNT, ExitStatus.HELD, ExitStatus.FENCED),
)

_NAMES = {
    "packs": "packs",
    "orphans": "packs without a row",
    "manifests": "images",
    "pieces": "pieces of images",
    "changelogs": "changelogs",
    "levels": "merged changelogs",
    "history": "index of the history",
}


def reclaim(
    target: options.Filesystem,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only list the objects that would be deleted.")
    ] = False,
    *,
    access: options.BucketOptions,
    unsafe_single_writer: options.UnsafeSingleWriter = False,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta reclaim``: delete the objects that no retained point in time needs."""
    place = targets.of_either(target, access.cachedir)
    wanted = OpenOptions(
        read_only=dry_run, unsafe_single_writer=unsafe_single_writer, lock_wait_s=LOCK_WAIT_S
    )
    with (
        interruption.explained(
            "nothing was changed"
            if dry_run
            else "only unneeded objects were deleted; a mount continues to delete the rest, and it"
            " is safe to run reclaim again"
        ),
        without_new_remains(place.state),
        TerminalFront(quiet=json) as front,
    ):
        result = trio.run(_reclaim, Opening(place, access, wanted, front))
    if json:
        output.print_json({"url": place.url, **result})
    else:
        _show(result)


async def _reclaim(target: Opening) -> dict[str, Any]:
    """Send a request to the mount on this host, or open the filesystem if it is not mounted.

    Raises:
        NotMountedError: the user gave a mountpoint, and no filesystem is mounted there.
    """
    is_dry, progress = target.opening.read_only, target.front.progress
    try:
        return await request_reclaim(target.place, target.front, dry_run=is_dry)
    except NotMountedError:
        if target.place.mountpoint is not None:
            raise
    async with opened_session(target) as session:
        if is_dry:
            return (await session.reclaimer.plan_all()).as_json(deleted=False)
        reclaimed = await session.reclaimer.reclaim_all(progress)
        await session.flush_at_end(progress)
        return reclaimed.as_json(deleted=True)


def _show(result: dict[str, Any]) -> None:
    rows = {
        _NAMES.get(kind, kind): f"{one['count']}, {output.human_bytes(one['bytes'])}"
        for kind, one in result["objects"].items()
        if one["count"]
    }
    if not rows:
        output.print_text("nothing to delete")
        return
    output.print_text("deleted:" if result["deleted"] else "would be deleted:")
    output.print_table(rows)
