"""``s3fs-meta pins``: list the trees that are pinned in the cache."""

import trio

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import mount_paths, targets
from s3fs_meta.mount.requests.cache_requests import request_pins
from s3fs_meta.mount.stores import options_of_mount, with_options

HELP = CommandHelp(
    name="pins",
    summary="List the pinned trees of a mount, and how much of each is cached.",
    description=(
        "s3fs-meta warm --pin pins a tree, s3fs-meta unpin unpins it. Content of a pinned tree "
        "that is not cached is downloaded in the background; if that fails, the reason is printed. "
        "Content that several trees share counts for each tree.",
    ),
    examples=(
        Example("s3fs-meta pins /mnt/home", "list the pinned trees"),
        Example("s3fs-meta pins --json /mnt/home", "print the list as JSON"),
    ),
    exits=exits_of(*OF_MOUNT, ExitStatus.SETTINGS),
)


def pins(
    mountpoint: options.Mountpoint, cachedir: options.Cachedir = None, json: options.Json = False
) -> None:
    """Run ``s3fs-meta pins``: list the trees that are pinned in the cache."""
    place = targets.of_mountpoint(mountpoint, cachedir)
    result = trio.run(request_pins, place)
    result["last_error"] = with_options(
        result["last_error"], place.url, options_of_mount(place), place.state
    )
    for one in result["pins"]:
        one["path"] = mount_paths.shown(place, one["path"])
    if json:
        output.print_json(result)
        return
    if not result["pins"]:
        output.print_text("nothing is pinned; s3fs-meta warm --pin PATH pins a tree")
        return
    for one in result["pins"]:
        size = output.human_bytes(one["total_bytes"])
        share = _share(one["cached_bytes"], one["total_bytes"])
        output.print_text(f"{size:>9}  {share:>10}  {one['path']}")
    if result["left_out"]:
        output.print_text(f"and {result['left_out']} more")
    used, most = result["pinned_bytes"], result["pinned_bytes_max"]
    output.print_text(f"pins use {output.human_bytes(used)} of at most {output.human_bytes(most)}")
    if result["over_bytes"]:
        output.print_text(
            f"{output.human_bytes(result['over_bytes'])} more are not kept in the cache; raise "
            "cachesize with s3fs-meta set, or unpin a tree"
        )
    if result["last_error"]:
        output.print_text(f"the last download failed: {result['last_error']}")


def _share(part: int, total: int) -> str:
    if part == total:
        return "all cached"
    return f"{100 * part // total}% cached"
