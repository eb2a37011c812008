"""``s3fs-meta retention``: show or change how long every point in time stays available."""

from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.cli.keys import change_superblock
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.console import output
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.mount.stores import opened_store
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.options.option_syntax import duration
from s3fs_meta.options.option_syntax import retention as parse_retention
from s3fs_meta.sync.superblock.changes import Mutate
from s3fs_meta.sync.superblock.host_copy import Remembered
from s3fs_meta.sync.superblock.selection import peek

HELP = CommandHelp(
    name="retention",
    summary="Show or change how long a filesystem retains its past points in time.",
    description=(
        "The writer deletes objects that only older points in time need, in the background; "
        "s3fs-meta reclaim deletes them immediately. A mount applies a change of the retention "
        "within ten minutes. A longer retention does not bring back points in time that were "
        "deleted.",
    ),
    examples=(
        Example("s3fs-meta retention s3://bucket/home", "show the retention"),
        Example("s3fs-meta retention s3://bucket/home 30d", "retain the last month"),
        Example("s3fs-meta retention s3://bucket/cache 0", "retain only the present state"),
    ),
    exits=exits_of(*OF_BUCKET),
)


def retention(
    url: options.Url,
    time: Annotated[
        str | None,
        typer.Argument(
            metavar="[TIME]",
            help="New retention, for example 12h, 7d or 0. Without it, the retention is shown.",
        ),
    ] = None,
    *,
    access: options.BucketOptions,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta retention``: show or change the retention."""
    wanted_s = None if time is None else parse_retention("retention", time)
    place = targets.of_url(url, access.cachedir)
    if wanted_s is None:
        found = trio.run(_show, place, access.s3)
    else:
        mutate = _retaining(wanted_s)
        found = change_superblock(place, access.s3, access.secret(), mutate)
    if json:
        output.print_json({"url": url, "retention_s": found.retention_s})
    else:
        output.print_text(duration(found.retention_s))


async def _show(place: Target, s3: S3Options) -> Superblock:
    async with opened_store(place.url, s3, state=place.state) as store:
        return await peek(store, Remembered(place.state))


def _retaining(wanted_s: int) -> Mutate:
    """Return a function that changes the retention in a superblock."""

    def amended(superblock: Superblock, keyring: Keyring) -> Superblock:
        return superblock_codec.amend(superblock, keyring, retention_s=wanted_s)

    return amended
