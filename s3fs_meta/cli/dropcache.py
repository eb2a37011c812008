"""``s3fs-meta dropcache``: remove cached content that is also in the bucket."""

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.mount.existing import mount_paths, mount_table, targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.requests.cache_requests import request_drop

HELP = CommandHelp(
    name="dropcache",
    summary="Remove cached content of a mount or a tree from this host if the bucket has it.",
    description=(
        "Removes all clean blocks of the given files and trees from the cache; for a mountpoint, "
        "it empties the whole cache. Use it to measure with a cold cache, or to free disk space. "
        "Later reads download the content again. Content that the bucket does not have yet is "
        "kept, and so are cached blocks whose location in the bucket is marked as damaged, because "
        "they may be the last copies. Content that is shared with files outside the tree is also "
        "removed.",
        "Pinned content is kept unless --pinned is given. With --pinned the pins stay, and the "
        "mount downloads the content again in the background; to prevent the download, run "
        "s3fs-meta unpin first.",
        "The kernel's page cache is not dropped: echo 3 > /proc/sys/vm/drop_caches does that.",
    ),
    examples=(
        Example("s3fs-meta dropcache /mnt/home", "empty the cache, except pinned trees"),
        Example("s3fs-meta dropcache /mnt/home/video", "remove only the content of one tree"),
    ),
    exits=exits_of(*OF_MOUNT),
)

_WHY: Final = {
    "not_uploaded": "not in the bucket yet",
    "not_synced": "location in the bucket not synced yet",
    "being_removed": "being removed",
    "last_copies": "perhaps the last copies",
    "needed": "needed by a running request",
    "pinned": "pinned; see s3fs-meta pins",
}


def dropcache(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Mountpoint, or files and directories of one mounted filesystem.",
        ),
    ],
    pinned: Annotated[bool, typer.Option("--pinned", help="Also remove pinned content.")] = False,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta dropcache``: remove cached content that is also in the bucket."""
    place, inodes = _wanted(paths, cachedir)
    result = trio.run(partial(request_drop, place, inodes, pinned=pinned))
    if json:
        output.print_json(result)
        return
    output.print_text(f"dropped {output.human_bytes(result['dropped']['bytes'])}")
    for why, size_bytes in result["kept"].items():
        output.print_text(f"kept {output.human_bytes(size_bytes)}: {_WHY[why]}")


def _wanted(paths: list[Path], cachedir: Path | None) -> tuple[Target, list[int] | None]:
    """Return the mount and the inodes of paths; None instead of inodes means the complete cache."""
    if len(paths) == 1 and mount_table.find(targets.resolve(paths[0])) is not None:
        return targets.of_mountpoint(paths[0], cachedir), None
    found = mount_paths.nodes(paths, cachedir)
    return found[0].place, [node.ino for node in found]
