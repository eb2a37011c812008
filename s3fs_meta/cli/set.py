"""``s3fs-meta set``: show or change settings of a mounted filesystem."""

import shlex
from typing import Annotated

import trio
import typer

from s3fs_meta.cli import completion, options
from s3fs_meta.cli.command_help import OF_MOUNT, CommandHelp, Example, exits_of
from s3fs_meta.console import output
from s3fs_meta.console.ui import TerminalFront
from s3fs_meta.errors import UsageError
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.requests.cache_requests import request_set

HELP = CommandHelp(
    name="set",
    summary="Show or change the size of the cache and the transfer limits of a mount.",
    description=(
        "Changes cachesize, upload_limit and download_limit, with the syntax of the mount options, "
        "while programs use the filesystem. Without values, or after a change, it lists them. "
        "Changes apply immediately and last until the unmount. To set a value for later mounts, "
        "pass the option to mount, or write it in /etc/fstab.",
        "A smaller cachesize evicts the least recently used blocks immediately. Blocks that are "
        "not in the bucket yet are kept until they are uploaded. If a name or value is wrong, "
        "nothing is changed.",
    ),
    examples=(
        Example("s3fs-meta set /mnt/home", "list the settings"),
        Example("s3fs-meta set /mnt/home cachesize=20G upload_limit=1M", "change two settings"),
        Example(
            's3fs-meta set /mnt/home upload_limit="08:00,512K 19:00,10M 23:00,off"',
            "limit uploads by a timetable",
        ),
        Example("s3fs-meta set /mnt/home upload_limit=off", "remove the upload limit"),
    ),
    exits=exits_of(*OF_MOUNT),
)


def set(  # noqa: A001 - the name of the command
    mountpoint: options.Mountpoint,
    values: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=VALUE]...",
            help="Settings to change in the running mount.",
            autocompletion=completion.settings,
        ),
    ] = None,
    cachedir: options.Cachedir = None,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta set``: show or change settings of a mounted filesystem."""
    targets.require_answers([mountpoint])
    if "=" in mountpoint.name and not mountpoint.exists():
        command = f"s3fs-meta set MOUNTPOINT {shlex.quote(str(mountpoint))}"
        raise UsageError(f"the mountpoint is missing: {command}")
    wanted: dict[str, str] = {}
    for text in values or ():
        name, equals, value = text.partition("=")
        if not equals:
            hint = "; run s3fs-meta dropcache MOUNTPOINT" if name == "dropcache" else ""
            raise UsageError(f"the setting {text!r} has no value: write NAME=VALUE{hint}")
        wanted[name] = value
    place = targets.of_mountpoint(mountpoint, cachedir)
    with TerminalFront() as front:
        result = trio.run(request_set, place, wanted)
        if result["over_bytes"]:
            size = output.human_bytes(result["over_bytes"])
            front.notice(
                f"dirty blocks exceed cachesize by {size}; they stay cached until they are uploaded"
            )
        if wanted and not json:
            front.notice("the change lasts until the unmount; the next mount uses its own options")
    if json:
        output.print_json(result)
        return
    rows = {}
    for one in result["settings"]:
        shown = one["value"]
        if "bytes_per_s" in one and " " in shown:
            rate = one["bytes_per_s"]
            shown += f" (now {'off' if rate is None else output.human_bytes(rate) + '/s'})"
        if one["value"] != one["mounted_with"]:
            shown += f" (mounted with {one['mounted_with']})"
        rows[one["name"]] = shown
    output.print_table(rows)
