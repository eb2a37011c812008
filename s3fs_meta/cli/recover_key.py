"""``s3fs-meta recover-key``: set a new passphrase with the recovery key, or replace the key."""

from pathlib import Path
from typing import Annotated

import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.cli.keys import change_superblock, require_encrypted
from s3fs_meta.cli.passphrase import NewPassphraseFile, new_passphrase
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.console import output, passphrase_source
from s3fs_meta.errors import UsageError
from s3fs_meta.mount.existing import targets
from s3fs_meta.mount.existing.targets import Target
from s3fs_meta.objects.urls import S3Options
from s3fs_meta.sync.superblock.unlocking import RecoveryKey, Secret

HELP = CommandHelp(
    name="recover-key",
    summary="Set a new passphrase with the recovery key that mkfs printed, or replace the key.",
    description=(
        "Sets a new passphrase if the passphrase is lost. The recovery key stays valid; case, "
        "spaces and dashes in it do not matter.",
        "With --renew the command replaces the recovery key and prints the new key. It needs the "
        "passphrase, or the old key with --recovery-key-file. The passphrase stays valid.",
        "--renew is not enough after a leak. The master key does not change, so the old recovery "
        "key and an older copy of the superblock are still enough to decrypt all data. If another "
        "person may know the old key, create a new filesystem and copy the files into it.",
    ),
    examples=(
        Example("s3fs-meta recover-key s3://bucket/home", "ask for the key and a new passphrase"),
        Example("s3fs-meta recover-key --renew s3://bucket/home", "print a new recovery key"),
    ),
    exits=exits_of(*OF_BUCKET),
)


def recover_key(
    url: options.Url,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Replace the recovery key and print the new key; needs the passphrase or the old "
            "recovery key.",
        ),
    ] = False,
    recovery_key_file: Annotated[
        Path | None,
        typer.Option(
            "--recovery-key-file",
            metavar="FILE",
            help="File whose first line is the recovery key; default: a prompt on the terminal.",
        ),
    ] = None,
    new_passphrase_file: NewPassphraseFile = None,
    *,
    access: options.BucketOptions,
) -> None:
    """Run ``s3fs-meta recover-key``: set a passphrase, or replace the recovery key."""
    if renew and new_passphrase_file is not None:
        raise UsageError(
            "--renew replaces only the recovery key; set a new passphrase in a second run"
        )
    if access.passphrase_file is not None and (not renew or recovery_key_file is not None):
        raise UsageError(
            "--passphrase-file can only be used with --renew, and not with --recovery-key-file"
        )

    def typed() -> bytes:
        if recovery_key_file is not None:
            return passphrase_source.from_file(recovery_key_file)
        return passphrase_source.ask_terminal("Recovery key: ", "--recovery-key-file").encode()

    place = targets.of_url(url, access.cachedir)
    secret: Secret = RecoveryKey(typed, given="as a recovery key")
    if renew:
        if recovery_key_file is None:
            secret = access.secret()
        _renew(place, access.s3, secret)
        return
    mutate = new_passphrase(new_passphrase_file)
    change_superblock(place, access.s3, secret, mutate)
    output.print_text("passphrase changed")


def _renew(place: Target, s3: S3Options, secret: Secret) -> None:
    """Print a new recovery key before it replaces the old one, so an interruption loses neither."""

    def renewed(superblock: Superblock, keyring: Keyring) -> Superblock:
        require_encrypted(superblock)
        changed, key = superblock_codec.renew_recovery_key(superblock, keyring)
        output.print_recovery_key(
            f"\nnew recovery key (shown only now; write it down):\n\n    {key}\n",
            "the old recovery key stays valid",
        )
        return changed

    change_superblock(place, s3, secret, renewed)
    output.print_text("recovery key replaced: the new key is valid, the old key is not")
    output.print_text("a copy of an older superblock still opens with the old key")
