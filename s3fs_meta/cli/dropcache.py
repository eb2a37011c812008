"""``s3fs-meta dropcache``: remove cached content that the bucket has."""

from typing import Final

import trio

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount import targets
from s3fs_meta.mount.cache_requests import request_drop

HELP = CommandHelp(
    name="dropcache",
    summary="Remove cached content of a mount from this host if the bucket has it.",
    description=(
        "Removes all clean blocks from the cache, for measurements with a cold cache, or to free "
        "disk space. Later reads download the content again. Content that the bucket does not "
        "have yet is kept, and so are cached blocks whose location in the bucket is marked as "
        "damaged, because they may be the last copies.",
        "The kernel's page cache is not dropped: echo 3 > /proc/sys/vm/drop_caches does that.",
    ),
    examples=(Example("s3fs-meta dropcache /mnt/home", "empties the cache"),),
    exits=exits_of(*OF_MOUNT, ExitStatus.LOCAL),
)

_WHY: Final = {
    "not_uploaded": "not in the bucket yet",
    "not_synced": "location in the bucket not synced yet",
    "being_removed": "being removed",
    "last_copies": "possibly the last copies",
}


def dropcache(
    mountpoint: options.Mountpoint,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta dropcache``."""
    result = trio.run(request_drop, targets.of_mountpoint(mountpoint, cachedir))
    if json:
        output.print_json(result)
        return
    output.print_text(f"dropped {output.human_bytes(result['dropped']['bytes'])}")
    for why, size_bytes in result["kept"].items():
        output.print_text(f"kept {output.human_bytes(size_bytes)}: {_WHY[why]}")
