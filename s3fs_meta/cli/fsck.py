"""``s3fs-meta fsck``: check and repair a filesystem."""

from typing import Annotated

import typer

from s3fs_meta.cli import options, places
from s3fs_meta.cli.command_help import CommandHelp, Example
from s3fs_meta.cli.exits import FSCK_MEANINGS

HELP = CommandHelp(
    name="fsck",
    summary="Check a filesystem, and repair it.",
    description=(
        "Checks the metadata, the local cache and the listing of the bucket against each other. "
        "Without -n, -p or -y it asks before it repairs anything, or only reports where nobody can "
        "be asked. On a filesystem that is mounted on this host it only reports.",
    ),
    examples=(
        Example("s3fs-meta fsck -n s3://bucket/home", "look, change nothing"),
        Example("s3fs-meta fsck -p s3://bucket/home", "repair what is safe, as at boot"),
        Example("s3fs-meta fsck -y --deep s3://bucket/home", "download everything, repair it all"),
    ),
    exits={**FSCK_MEANINGS},
)


def fsck(
    url: options.Url,
    report_only: Annotated[bool, typer.Option("-n", help="Change nothing.")] = False,
    cachedir: options.Cachedir = None,
) -> int:
    """Carry out the command."""
    places.of_url(url, cachedir)
    return 0
