"""``s3fs-meta warm``: download trees into the cache, and optionally pin them."""

from typing import Annotated, Any

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.cli.limits import MISSING_PATHS_PRINTED_MAX
from s3fs_meta.console import interruption, output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.console.ui import Front, TerminalFront
from s3fs_meta.counted import counted
from s3fs_meta.errors import ControlError
from s3fs_meta.mount.existing import mount_paths
from s3fs_meta.mount.requests.cache_requests import request_warm
from s3fs_meta.mount.requests.download_watch import DownloadWatch

HELP = CommandHelp(
    name="warm",
    summary="Download files and trees of a mount into the cache, and optionally keep them there.",
    description=(
        "Downloads the content that is not cached yet, in a few large requests, so that programs "
        "read it at the speed of the local disk, and without the bucket. On a terminal it shows "
        "progress and the time left. If the trees do not fit into the cache, it reports this "
        "before it downloads anything. If the bucket cannot be reached, it lists what is not "
        "cached.",
        "With --pin the trees stay in the cache, even across unmounts, kills and upgrades. The "
        "mount also keeps content that is written into them later, on this host or another one, "
        "which it downloads in the background. Pins apply only to this host, and use at most seven "
        "eighths of cachesize. A pin follows a renamed file or directory, and ends when it is "
        "removed; a pin in a mounted point in time ends with the mount. Without --pin, content that "
        "is not used may be evicted when the cache is full.",
        "download_limit applies. Only root and the user who mounted the filesystem may use the "
        "command, for files that they may read.",
    ),
    examples=(
        Example("s3fs-meta warm /mnt/home/data/train", "download a tree before a training run"),
        Example(
            "s3fs-meta warm --pin /mnt/home/work /mnt/home/mail",
            "keep two trees in the cache while offline",
        ),
        Example("s3fs-meta warm --json /mnt/home/video.mkv", "print as JSON what was downloaded"),
    ),
    exits=exits_of(
        *OF_MOUNT,
        ExitStatus.SETTINGS,
        ExitStatus.STORE,
        ExitStatus.STORE_ACCESS,
        ExitStatus.CORRUPTION,
    ),
)


def warm(
    paths: options.ReadablePaths,
    pin: Annotated[
        bool, typer.Option("--pin", help="Keep the trees in the cache until s3fs-meta unpin.")
    ] = False,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta warm``: download trees into the cache, and optionally pin them."""
    found = mount_paths.nodes(paths, cachedir)
    remains = "downloaded content stays in the cache; run the command again to continue"
    if pin:
        remains = (
            "the trees may be pinned already, and the mount then continues the download in the "
            "background; s3fs-meta pins shows the progress, s3fs-meta unpin stops it"
        )
    place = found[0].place
    with interruption.explained(remains), TerminalFront() as front:
        result = trio.run(_request, found, front, pin)
        result["paths"] = [mount_paths.shown(place, path) for path in result["paths"]]
        if not json and result["missing_files"]:
            _print_missing(result, front)
    if json:
        output.print_json(result)
    else:
        _print(result)
    if result["error"] is not None:
        raise ControlError(result["error"]["kind"], result["error"]["message"])
    if result["missing_bytes"]:
        raise ControlError(
            "NoSpaceLeftError",
            "other programs filled the cache, so part of the content was evicted; raise cachesize, "
            "or use --pin",
        )


async def _request(found: list[mount_paths.Node], front: Front, pin: bool) -> dict[str, Any]:
    place = found[0].place
    async with DownloadWatch(place, front).running():
        return await request_warm(place, [node.ino for node in found], front, pin=pin)


def _print(result: dict[str, Any]) -> None:
    cached, total = result["cached_bytes"], result["total_bytes"]
    amount = output.human_bytes(total)
    share = f"all {amount}" if cached == total else f"{output.human_bytes(cached)} of {amount}"
    stay = " and pinned" if result["pinned"] else ""
    output.print_text(
        f"{output.human_bytes(result['fetched_bytes'])} downloaded, {share} cached{stay}"
    )


def _print_missing(result: dict[str, Any], front: Front) -> None:
    files = result["missing_files"]
    size = output.human_bytes(result["missing_bytes"])
    front.notice(f"not cached: {size} in {counted(files, 'file')}:")
    shown = result["paths"][:MISSING_PATHS_PRINTED_MAX]
    for path in shown:
        front.notice(f"  {path}")
    if files > len(shown):
        front.notice(f"  and {files - len(shown)} more files")
