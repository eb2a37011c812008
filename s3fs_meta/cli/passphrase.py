"""``s3fs-meta passphrase``: change the passphrase."""

from pathlib import Path
from typing import Annotated

import typer

from s3fs_meta.cli import options
from s3fs_meta.cli.command_help import OF_BUCKET, CommandHelp, Example, exits_of
from s3fs_meta.cli.keys import change_superblock, require_encrypted
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.console import output, passphrase_source
from s3fs_meta.mount.existing import targets
from s3fs_meta.sync.superblock.changes import Mutate

HELP = CommandHelp(
    name="passphrase",
    summary="Change the passphrase of an encrypted filesystem.",
    description=(
        "Only the wrapping of the master key changes; no data is rewritten, and the recovery key "
        "stays valid. The filesystem may be mounted. A copy of the old superblock still opens with "
        "the old passphrase. The command lists copies of the superblock that it could not reach.",
    ),
    examples=(
        Example("s3fs-meta passphrase s3://bucket/home", "ask for the old and the new passphrase"),
        Example(
            "s3fs-meta passphrase --passphrase-file old --new-passphrase-file new s3://bucket/home",
            "read both passphrases from files",
        ),
    ),
    exits=exits_of(*OF_BUCKET),
)

NewPassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--new-passphrase-file",
        metavar="FILE",
        help="File whose first line is the new passphrase; default: a prompt on the terminal.",
    ),
]


def passphrase(
    url: options.Url,
    new_passphrase_file: NewPassphraseFile = None,
    *,
    access: options.BucketOptions,
) -> None:
    """Run ``s3fs-meta passphrase``: change the passphrase."""
    place, mutate = targets.of_url(url, access.cachedir), new_passphrase(new_passphrase_file)
    options.warn_if_readable(new_passphrase_file)
    change_superblock(place, access.s3, access.secret(), mutate)
    output.print_text("passphrase changed")
    output.print_text(
        "a copy of the old superblock still opens with the old passphrase; the recovery key was "
        "not changed (s3fs-meta recover-key --renew replaces it)"
    )


def new_passphrase(file: Path | None) -> Mutate:
    """Return a function that sets a new passphrase, read from *file* or from the terminal."""

    def rewrapped(superblock: Superblock, keyring: Keyring) -> Superblock:
        require_encrypted(superblock)
        return superblock_codec.rewrap(
            superblock, keyring, passphrase_source.new(None, file, _ask_new)
        )

    return rewrapped


def _ask_new(prompt: str) -> str:
    """Ask for the new passphrase on the terminal; the environment is not used."""
    return passphrase_source.ask_terminal(prompt, "--new-passphrase-file")
