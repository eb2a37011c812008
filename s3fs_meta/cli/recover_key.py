"""``s3fs-meta recover-key``: set a new passphrase with the recovery key."""

from pathlib import Path
from typing import Annotated

import trio
import typer

from s3fs_meta.cli import options, output, passphrase_source, places
from s3fs_meta.cli.command_help import CommandHelp, Example, exits_of
from s3fs_meta.cli.exits import ExitStatus
from s3fs_meta.cli.keys import change_superblock
from s3fs_meta.cli.passphrase import NewPassphraseFile, new_passphrase
from s3fs_meta.sync.unlocking import RecoveryKey

HELP = CommandHelp(
    name="recover-key",
    summary="Set a new passphrase with the recovery key that mkfs printed.",
    description=(
        "For a filesystem whose passphrase is lost. The recovery key stays valid; case, spaces "
        "and dashes in it do not matter.",
    ),
    examples=(
        Example("s3fs-meta recover-key s3://bucket/home", "asks for the key and a new passphrase"),
    ),
    exits=exits_of(
        ExitStatus.PASSPHRASE,
        ExitStatus.NO_FILESYSTEM,
        ExitStatus.STORE,
        ExitStatus.STORE_ACCESS,
        ExitStatus.CORRUPTION,
    ),
)


def recover_key(
    url: options.Url,
    recovery_key_file: Annotated[
        Path | None,
        typer.Option(
            "--recovery-key-file",
            metavar="FILE",
            help="File whose first line is the recovery key; default: the terminal is asked.",
            show_default=False,
        ),
    ] = None,
    new_passphrase_file: NewPassphraseFile = None,
    endpoint_url: options.EndpointUrl = None,
    region: options.Region = None,
    profile: options.Profile = None,
    cachedir: options.Cachedir = None,
) -> None:
    """Carry out the command."""

    def typed() -> bytes:
        if recovery_key_file is not None:
            return passphrase_source.from_file(recovery_key_file)
        return passphrase_source.ask_terminal("Recovery key: ", "--recovery-key-file").encode()

    place, s3 = places.of_url(url, cachedir), options.s3_options(endpoint_url, region, profile)
    mutate = new_passphrase(new_passphrase_file)
    trio.run(change_superblock, place, s3, RecoveryKey(typed, given=True), mutate)
    output.print_text("passphrase changed")
