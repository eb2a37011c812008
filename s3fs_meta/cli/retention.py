"""``s3fs-meta retention``: how far back moments can be had."""

from pathlib import Path
from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options, output, passphrase_source
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.cli.exits import ExitStatus
from s3fs_meta.cli.stores import opened_store
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import NotAFilesystemError, ObjectMissingError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.option_syntax import duration
from s3fs_meta.option_syntax import retention as parse_retention
from s3fs_meta.sync.opening import load_superblock, unlock

HELP = CommandHelp(
    name="retention",
    summary="Show or change how far back any moment of a filesystem can be had.",
    description=(
        "Objects that only older moments need are deleted in the background by whoever has the "
        "filesystem mounted; s3fs-meta reclaim does it at once. A mount heeds a change within ten "
        "minutes. What is deleted already does not come back.",
    ),
    examples=(
        Example("s3fs-meta retention s3://bucket/home", "show it"),
        Example("s3fs-meta retention s3://bucket/home 30d", "keep a month"),
        Example("s3fs-meta retention s3://bucket/cache 0", "keep only what is needed now"),
    ),
    exits=exits_of(
        ExitStatus.PASSPHRASE,
        ExitStatus.NO_FILESYSTEM,
        ExitStatus.STORE,
        ExitStatus.STORE_ACCESS,
        ExitStatus.CORRUPTION,
    ),
)


def retention(
    url: options.Url,
    time: Annotated[
        str | None,
        typer.Argument(
            metavar="[TIME]", help="For example 12h, 7d or 0; default: show it.", show_default=False
        ),
    ] = None,
    passphrase_file: options.PassphraseFile = None,
    endpoint_url: options.EndpointUrl = None,
    region: options.Region = None,
    profile: options.Profile = None,
    cachedir: options.Cachedir = None,  # taken by every command; nothing local changes here
    json: options.Json = False,
) -> None:
    """Carry out the command."""
    s3 = options.s3_options(endpoint_url, region, profile)
    wanted_s = None if time is None else parse_retention("retention", time)
    if wanted_s is None:
        found = trio.run(_show, url, s3)
    else:
        found = trio.run(_change, url, s3, wanted_s, passphrase_file)
    if json:
        output.print_json({"url": url, "retention_s": found.retention_s})
    else:
        output.print_text(duration(found.retention_s))


async def _show(url: str, s3: S3Options) -> Superblock:
    async with opened_store(url, s3) as store:
        return await load_superblock(store)


async def _change(
    url: str, s3: S3Options, wanted_s: int, passphrase_file: Path | None
) -> Superblock:
    """Replace the superblock.

    Raises:
        PassphraseError: it is wrong; nothing was changed.
        PreconditionError: somebody else changed the superblock meanwhile.
    """
    environment = passphrase_source.from_environment()
    async with opened_store(url, s3) as store:
        try:
            fetched = await store.get(superblock_codec.KEY, TEXT_OBJECT_BYTES_MAX)
        except ObjectMissingError as exc:
            raise NotAFilesystemError(url) from exc
        superblock = superblock_codec.decode(superblock_codec.KEY, fetched.data)
        keyring = await unlock(
            superblock, lambda: passphrase_source.existing(environment, passphrase_file)
        )
        changed = superblock_codec.amend(superblock, keyring, retention_s=wanted_s)
        await store.replace(superblock_codec.KEY, superblock_codec.encode(changed), fetched.etag)
        return changed
