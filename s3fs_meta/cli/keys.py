"""Replacing the passphrase in the superblock, whichever way it was opened."""

from collections.abc import Callable
from pathlib import Path

from s3fs_meta.cli import passphrase_source
from s3fs_meta.cli.stores import opened_store
from s3fs_meta.codec import superblock as superblock_codec
from s3fs_meta.codec.keyring import Keyring
from s3fs_meta.codec.superblock import Superblock
from s3fs_meta.errors import NotAFilesystemError, ObjectMissingError, PassphraseError
from s3fs_meta.limits import TEXT_OBJECT_BYTES_MAX
from s3fs_meta.objects.urls import S3Options


async def replace_passphrase(
    url: str,
    s3: S3Options,
    unlock: Callable[[Superblock], Keyring],
    new_passphrase_file: Path | None,
) -> None:
    """Give a filesystem a new passphrase.

    Args:
        url: where it is.
        s3: for buckets.
        unlock: opens it as it is now; may ask somebody, which nothing here minds.
        new_passphrase_file: its first line; None asks on the terminal.

    Raises:
        PassphraseError: the old one is wrong, the new one unusable; nothing was changed.
        PreconditionError: somebody else changed the superblock meanwhile.
    """
    async with opened_store(url, s3) as store:
        try:
            fetched = await store.get(superblock_codec.KEY, TEXT_OBJECT_BYTES_MAX)
        except ObjectMissingError as exc:
            raise NotAFilesystemError(url) from exc
        superblock = superblock_codec.decode(superblock_codec.KEY, fetched.data)
        if not superblock.encrypted:
            raise PassphraseError("this filesystem is not encrypted, so it has no passphrase")
        keyring = unlock(superblock)
        new = passphrase_source.new(None, new_passphrase_file, _ask_new)
        rewrapped = superblock_codec.rewrap(superblock, keyring, new)
        await store.replace(superblock_codec.KEY, superblock_codec.encode(rewrapped), fetched.etag)


def _ask_new(prompt: str) -> str:
    """Ask for what no environment says: the new passphrase."""
    return passphrase_source.ask_terminal(prompt, "--new-passphrase-file")
