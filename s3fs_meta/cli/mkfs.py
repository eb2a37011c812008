"""``s3fs-meta mkfs``: create a filesystem."""

import contextlib
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import trio
import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.clock import SystemClock
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.console import interruption, output, passphrase_source
from s3fs_meta.console.exits import ExitStatus
from s3fs_meta.errors import NotEmptyError, SettingsError, StoreAccessError, UsageError
from s3fs_meta.mount.existing.targets import own_cachedir
from s3fs_meta.mount.stores import opened_store, require_answers
from s3fs_meta.objects import urls
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.options.option_syntax import parse_size
from s3fs_meta.options.option_syntax import retention as parse_retention
from s3fs_meta.state_paths import locate
from s3fs_meta.sync.administration.mkfs import NewFilesystem, has_superblock, make_filesystem

HELP = CommandHelp(
    name="mkfs",
    summary="Create a filesystem.",
    description=(
        "The bucket, prefix or directory must be empty, and must not be inside another "
        "filesystem. All objects are encrypted, unless --plain is given. The command asks for the "
        "passphrase. It prints the recovery key only once, before it creates the filesystem, and "
        "does not store it; this key opens the filesystem if the passphrase is lost.",
    ),
    examples=(
        Example(
            "s3fs-meta mkfs s3://bucket/home", "encrypt, and store on AWS; asks for a passphrase"
        ),
        Example(
            "s3fs-meta mkfs --endpoint-url http://nas:9000 s3://bucket/photos",
            "store on another S3 server",
        ),
        Example(
            "s3fs-meta mkfs --plain local:///srv/store", "store in a directory, without encryption"
        ),
    ),
    exits=exits_of(
        ExitStatus.SETTINGS,
        ExitStatus.PASSPHRASE,
        ExitStatus.NOT_EMPTY,
        ExitStatus.STORE,
        ExitStatus.STORE_ACCESS,
        ExitStatus.UNCONDITIONAL,
        ExitStatus.CONTROL,
    ),
)


def mkfs(
    url: options.Url,
    label: Annotated[
        str,
        typer.Option(
            "--label", metavar="TEXT", help="Label of the filesystem, shown by other commands."
        ),
    ] = "",
    block_size: Annotated[
        str,
        typer.Option(
            "--block-size",
            metavar="SIZE",
            help="Block size of file data: a power of two, 64K to 16M.",
        ),
    ] = "1M",
    page_size: Annotated[
        str,
        typer.Option(
            "--page-size",
            metavar="SIZE",
            help="Page size of the metadata database: a power of two, 512 to 64K.",
        ),
    ] = "4K",
    retention: Annotated[
        str,
        typer.Option(
            "--retention",
            metavar="TIME",
            help="How long each point in time stays available: 0 to 100 years.",
        ),
    ] = "7d",
    plain: Annotated[bool, typer.Option("--plain", help="Do not encrypt the data.")] = False,
    *,
    access: options.BucketOptions,
    unsafe_single_writer: options.UnsafeSingleWriter = False,
    json: options.Json = False,
) -> None:
    """Run ``s3fs-meta mkfs``: create a filesystem."""
    urls.require_bucket(access.s3, url)
    if plain and access.passphrase_file is not None:
        raise UsageError("--plain and --passphrase-file cannot be combined")
    block_bytes = parse_size("--block-size", block_size, "512K")
    page_bytes = parse_size("--page-size", page_size, "8K")
    retention_s = parse_retention("--retention", retention)
    cachedir = access.cachedir or own_cachedir()
    locate(url, cachedir)  # refuses a URL that no other command accepts
    require_answers(url)
    # Check the values before asking for a passphrase and before creating a directory.
    superblock_codec.create("", label, block_bytes, page_bytes, unsafe_single_writer, None)
    passphrase = None if plain else _new_passphrase(access.passphrase_file)
    wanted = NewFilesystem(
        label=label,
        block_bytes=block_bytes,
        page_size=page_bytes,
        passphrase=passphrase,
        retention_s=retention_s,
        unsafe_single_writer=unsafe_single_writer,
    )
    with interruption.explained(
        "run mkfs again; if it finds an unfinished filesystem, remove that first: "
        + options.command("destroy", *access.arguments, url)
    ):
        superblock = trio.run(partial(_make, url, access.s3, wanted, cachedir, json=json))
    _show_made(url, superblock, json=json)


async def _make(
    url: str, s3: S3Options, wanted: NewFilesystem, cachedir: Path, *, json: bool
) -> Superblock:
    await _refuse_below_another(url, s3)
    with _scratch(cachedir) as scratch:
        async with opened_store(url, s3, make_root=True) as store:
            show_key = partial(_show_key, url, json=json)
            return await make_filesystem(store, wanted, scratch, SystemClock(), keep_key=show_key)


async def _refuse_below_another(url: str, s3: S3Options) -> None:
    """Refuse a URL inside another filesystem, because filesystems cannot be nested.

    Raises:
        NotEmptyError: a parent of the URL is a filesystem; nothing was created.
    """
    for parent in urls.above(url):
        async with opened_store(parent, s3, probe_only=True) as store:
            try:
                found = await has_superblock(store)
            except StoreAccessError:
                continue  # no permission to read the prefix
        if found:
            raise NotEmptyError(
                f"the prefix {url} lies below the filesystem {parent}; choose another prefix"
            )


@contextlib.contextmanager
def _scratch(cachedir: Path) -> Iterator[Path]:
    """Yield a temporary directory for the new database."""
    try:
        cachedir.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = tempfile.TemporaryDirectory(prefix="mkfs-", dir=cachedir)
    except OSError as exc:
        raise SettingsError(
            f"cannot write to the directory {str(cachedir)!r} ({exc.strerror}); choose another "
            "with --cachedir"
        ) from exc
    with directory as path:
        yield Path(path)


def _show_key(url: str, superblock: Superblock, recovery_key: str | None, *, json: bool) -> None:
    """Print the recovery key, before the first object is created.

    Raises:
        UnprintedKeyError: the key cannot be written to standard output.
    """
    if recovery_key is None:
        return
    text = f"recovery key (shown only now; write it down):\n\n    {recovery_key}\n"
    if json:
        text = output.json_text(_described(url, superblock, recovery_key))
    output.print_recovery_key(text, "nothing was created")


def _new_passphrase(file: Path | None) -> bytes:
    """Read the passphrase of a new filesystem from the environment, a file or the terminal."""
    environment = passphrase_source.from_environment()
    options.warn_if_readable(file)
    return passphrase_source.new(environment, file)


def _show_made(url: str, superblock: Superblock, *, json: bool) -> None:
    """Print facts about the new filesystem."""
    if not json:
        output.print_text(f"created filesystem {superblock.uuid} at {url}")
    elif not superblock.encrypted:  # if encrypted, _show_key has printed the JSON object
        output.print_json(_described(url, superblock, None))


def _described(url: str, superblock: Superblock, recovery_key: str | None) -> dict[str, Any]:
    """Return facts about the new filesystem as a JSON object, for --json."""
    return {
        "url": url,
        "uuid": superblock.uuid,
        "label": superblock.label,
        "block_bytes": superblock.block_bytes,
        "page_size": superblock.page_size,
        "retention_s": superblock.retention_s,
        "encrypted": superblock.encrypted,
        "recovery_key": recovery_key,
    }
