"""``s3fs-meta unpin``: unpin trees, so that their content can be evicted from the cache."""

import trio

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.mount.existing import mount_paths
from s3fs_meta.mount.requests.cache_requests import request_unpin

HELP = CommandHelp(
    name="unpin",
    summary="Unpin trees, so that the cache may evict their content.",
    description=(
        "The content stays cached until the cache needs space; s3fs-meta dropcache PATH removes it "
        "immediately. Only the paths that s3fs-meta pins lists can be unpinned. If one of several "
        "paths is not pinned, none is unpinned.",
    ),
    examples=(Example("s3fs-meta unpin /mnt/home/work", "unpin a tree"),),
    exits=exits_of(*OF_MOUNT, ExitStatus.SETTINGS),
)


def unpin(
    paths: options.ReadablePaths, cachedir: options.Cachedir = None, json: options.Json = False
) -> None:
    """Run ``s3fs-meta unpin``: unpin trees, so that their content can be evicted from the cache."""
    found = mount_paths.nodes(paths, cachedir)
    trio.run(request_unpin, found[0].place, [node.ino for node in found])
    if json:
        output.print_json({"unpinned": [node.path for node in found]})
